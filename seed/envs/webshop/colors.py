"""Colours of options, reduced to the colour words of WebShop: "navy blue" and "bright blue" are both blue."""

from __future__ import annotations

from functools import lru_cache

_COLORS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
    burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac
    copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite
    grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light
    lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy
    nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell
    silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
"""
COLORS = tuple(sorted(_COLORS.split()))


@lru_cache(maxsize=8192)
def plain_color(option: str) -> str:
    """The first colour word, by the alphabet, that occurs anywhere in an option; without one the option."""
    return next((color for color in COLORS if color in option), option)
