"""Support plugins with the roofline of their work, and with what converters of frontends emit."""
