"""Configurations that tests change."""

from sprout.seed.config import config_from


def changed(config, **fields):
    """The configuration with `section__field=value` replaced."""
    values = config.model_dump()
    for name, value in fields.items():
        section, _, leaf = name.partition("__")
        values[section][leaf] = value
    return config_from(values)
