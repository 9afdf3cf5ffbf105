"""The fixture of plugins that live in this process only, as the core's tests have it."""

from process_plugins import install as install
