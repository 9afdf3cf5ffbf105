"""Which plugins are installed: their states, and the manager that loads one when it is first needed."""
