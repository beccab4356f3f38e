"""What the generated shop sells: kinds of products with their words, options and prices, all made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_BRANDS = """
    Alderkin Bexley Brantmoor Calvora Corriden Dunmere Elvanto Fenwick Fjordal Galdora Halvik Harrowby
    Ithren Jorvane Kestrin Lanmoor Lumavel Maristo Mendrake Nolvera Norvale Ostrand Pellworth Quillan
    Ravenor Rostley Sablewood Solvane Tarnhill Tessaro Ulvand Velmora Verdane Wexcombe Wyndale Yarrowby
    Zelmar Zephira
"""
BRANDS = _BRANDS.split()
_SERIES = """
    Aero Arbor Atlas Bay Bloom Breeze Canyon Comet Cove Crest Dawn Delta Drift Ember Fern Flint Forge
    Glade Harbor Haven Horizon Isle Juniper Lark Meadow Mesa Nova Oasis Orbit Peak Pine Prism Quest
    Ridge River Sage Sierra Summit Tide Trail Vista Willow
"""
SERIES = _SERIES.split()

COLORS = [
    "black", "white", "navy", "red", "olive", "grey", "beige", "teal", "maroon", "yellow", "pink",
    "brown",
]  # fmt: skip
CLOTHES = ["x-small", "small", "medium", "large", "x-large", "xx-large"]
SHOES = ["6", "6.5", "7", "7.5", "8", "8.5", "9", "9.5", "10", "11"]
SCENTS = ["fresh linen", "lavender", "citrus", "vanilla", "cedar wood", "unscented"]
FLAVORS = ["original", "sea salt", "honey", "chili lime", "dark cocoa", "maple", "garlic herb"]
PACKS = ["pack of 1", "pack of 2", "pack of 4", "pack of 6", "pack of 12"]
LENGTHS = ["3 feet", "6 feet", "10 feet", "15 feet", "25 feet"]
BOTTLES = ["4 fl oz", "8 fl oz", "12 fl oz", "16 fl oz"]
FINISHES = ["natural oak", "walnut", "espresso", "whitewash", "charcoal"]
STORAGE = ["32gb", "64gb", "128gb", "256gb"]


@dataclass(frozen=True)
class Kind:
    """One kind of product: `noun` names it in titles, `query` is what shoppers type.

    Attributes come in three sorts, by how an instruction says them: `how` before the noun ("machine wash"),
    `having` after "with" ("rubber sole"), `use` after "for" ("daily wear"). Prices are in dollars.
    """

    noun: str
    query: str
    path: str
    how: tuple[str, ...]
    having: tuple[str, ...]
    use: tuple[str, ...]
    options: Mapping[str, list[str]]
    prices: tuple[float, float]


def _kind(
    noun: str, query: str, path: str, how: str, having: str, use: str, options: Mapping[str, list[str]],
    low: float, high: float,
) -> Kind:  # fmt: skip
    return Kind(noun, query, path, _words(how), _words(having), _words(use), options, (low, high))


def _words(listed: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in listed.split(","))


_WEAR = {"color": COLORS, "size": CLOTHES}
_FEET = {"color": COLORS, "size": SHOES}

KINDS: Mapping[str, tuple[Kind, ...]] = {
    "fashion": (
        _kind("Trail Shoe", "men's trail shoes", "Clothing, Shoes & Jewelry › Men › Shoes › Trail Running",
              "anti slip, quick drying, day comfort", "rubber sole, arch support, mesh lining, lace closure",
              "long hikes, daily wear", _FEET, 35, 140),
        _kind("Ankle Boot", "women's ankle boots",
              "Clothing, Shoes & Jewelry › Women › Shoes › Ankle & Bootie",
              "water resistant, non slip, hand sewn", "faux fur, rubber outsole, side zipper, memory foam",
              "cold winters, daily wear", _FEET, 30, 160),
        _kind("Crew Neck Shirt", "men's t-shirts",
              "Clothing, Shoes & Jewelry › Men › Clothing › Shirts › T-Shirts",
              "machine wash, moisture wicking, slim fit",
              "short sleeve, combed cotton, crew neck, flat seams",
              "gym workout, daily wear", _WEAR, 8, 40),
        _kind("Rain Jacket", "women's rain jackets",
              "Clothing, Shoes & Jewelry › Women › Clothing › Coats & Jackets",
              "hand wash, wind proof, loose fit", "zipper closure, taped seams, folding hood, fleece lining",
              "spring weather, bike rides", _WEAR, 28, 150),
        _kind("Lounge Pants", "men's sleep & lounge",
              "Clothing, Shoes & Jewelry › Men › Clothing › Sleep & Lounge",
              "machine wash, relaxed fit, pre shrunk",
              "elastic waistband, deep pockets, brushed flannel, drawstring closure",
              "lazy mornings, home office", _WEAR, 14, 55),
        _kind("Wool Scarf", "women's scarves & wraps",
              "Clothing, Shoes & Jewelry › Women › Accessories › Scarves & Wraps",
              "dry clean, double sided, itch free", "merino wool, knotted fringe, cable knit, printed border",
              "cold winters, evening wear", {"color": COLORS}, 12, 70),
    ),
    "beauty": (
        _kind("Body Lotion", "body care", "Beauty & Personal Care › Skin Care › Body › Moisturizers",
              "paraben free, cruelty free, fast absorbing",
              "shea butter, coconut oil, vitamin e, oat extract",
              "dry skin, sensitive skin", {"scent": SCENTS, "size": BOTTLES}, 6, 35),
        _kind("Shampoo", "shampoo & conditioner",
              "Beauty & Personal Care › Hair Care › Shampoo & Conditioner › Shampoos",
              "sulfate free, plant based, color safe", "argan oil, tea tree, rice protein, aloe vera",
              "damaged hair, curly hair", {"scent": SCENTS, "size": BOTTLES}, 7, 38),
        _kind("Nail Clipper Set", "foot, hand & nail care",
              "Beauty & Personal Care › Foot, Hand & Nail Care › Tools",
              "travel size, heavy duty, easy carry",
              "stainless steel, leather case, curved blades, safety lock",
              "thick nails, home manicure", {"color": COLORS, "style": ["6 pieces", "12 pieces",
              "18 pieces"]}, 6, 30),
        _kind("Deodorant Stick", "deodorants & antiperspirants",
              "Beauty & Personal Care › Personal Care › Deodorants & Antiperspirants",
              "aluminum free, long lasting, residue free",
              "baking soda, mineral salts, witch hazel, corn starch",
              "active days, sensitive skin", {"scent": SCENTS, "size": PACKS}, 4, 28),
        _kind("Makeup Brush", "makeup brushes & tools",
              "Beauty & Personal Care › Tools & Accessories › Makeup Brushes",
              "easy clean, hand made, shed free",
              "synthetic bristles, bamboo handle, angled tip, storage pouch",
              "powder blush, eye shadow", {"color": COLORS}, 5, 32),
        _kind("Face Serum", "skin care sets & kits", "Beauty & Personal Care › Skin Care › Face › Serums",
              "fragrance free, dermatologist tested, oil free",
              "hyaluronic acid, green tea, rose hip, glass dropper",
              "fine lines, dull skin", {"size": BOTTLES}, 9, 60),
    ),
    "electronics": (
        _kind("Charging Cable", "usb cables", "Electronics › Accessories & Supplies › Cables › USB Cables",
              "fast charging, tangle free, heavy duty",
              "braided nylon, gold plated, aluminum shell, strain relief",
              "car trips, bedside use", {"color": COLORS, "size": LENGTHS}, 5, 32),
        _kind("Bluetooth Speaker", "portable speakers", "Electronics › Portable Audio & Video › Speakers",
              "water resistant, easy use, battery powered",
              "stereo sound, carry strap, touch controls, bass radiator",
              "garden parties, shower use", {"color": COLORS}, 18, 190),
        _kind("Camera Tripod", "tripods & monopods", "Electronics › Camera & Photo › Tripods & Monopods",
              "quick release, easy carry, height adjustable",
              "carbon fiber, ball head, rubber feet, bubble level",
              "bird watching, night shots", {"color": COLORS, "size": ["50 inch", "60 inch",
              "72 inch"]}, 22, 210),
        _kind("Memory Card", "memory cards", "Electronics › Computers & Accessories › Memory Cards",
              "high speed, shock proof, x-ray proof",
              "adapter included, write lock, error correction, label field",
              "action cameras, dash cams", {"capacity": STORAGE}, 8, 60),
        _kind("Desk Phone Stand", "cell phone stands",
              "Cell Phones & Accessories › Accessories › Mounts & Stands",
              "height adjustable, anti slip, fully foldable",
              "aluminum alloy, silicone pads, weighted base, cable slot",
              "video calls, kitchen recipes", {"color": COLORS}, 7, 45),
        _kind("Noise Reducing Headphones", "over-ear headphones",
              "Electronics › Headphones › Over-Ear Headphones",
              "noise cancelling, fast charging, light weight",
              "memory foam, detachable microphone, travel case, volume wheel",
              "long flights, office calls", {"color": COLORS}, 25, 280),
    ),
    "garden": (
        _kind("Coffee Table", "coffee tables",
              "Home & Kitchen › Furniture › Living Room Furniture › Coffee Tables",
              "mid century, easy assemble, scratch resistant",
              "solid wood, metal legs, storage shelf, rounded corners",
              "living room, small apartments", {"color": FINISHES, "size": ["36 inch", "42 inch",
              "48 inch"]}, 60, 420),
        _kind("Table Lamp", "table lamps",
              "Tools & Home Improvement › Lighting & Ceiling Fans › Lamps › Table Lamps",
              "eco friendly, energy saving, touch dimmable",
              "glass shade, bronze finish, fabric cord, usb port",
              "dining room, reading corner", {"color": COLORS}, 18, 150),
        _kind("Storage Basket", "storage baskets", "Home & Kitchen › Storage & Organization › Baskets & Bins",
              "hand woven, fully collapsible, space saving",
              "cotton rope, leather handles, canvas liner, label holder",
              "laundry room, toy storage", {"color": COLORS, "size": ["small", "medium", "large"]}, 10, 65),
        _kind("Bar Stool", "bar stools", "Home & Kitchen › Furniture › Game & Recreation Room › Bar Stools",
              "heavy duty, assembly required, height adjustable",
              "faux leather, steel frame, foot rest, button tufting",
              "kitchen island, dining room", {"color": COLORS, "size": ["set of 1", "set of 2",
              "set of 4"]}, 45, 330),
        _kind("Throw Blanket", "throw blankets", "Home & Kitchen › Bedding › Blankets & Throws › Throws",
              "machine washable, super soft, fade resistant",
              "sherpa fleece, waffle weave, tassel trim, quilted stitching",
              "living room, guest bedroom", {"color": COLORS, "size": ["50 x 60 inch",
              "60 x 80 inch"]}, 14, 90),
        _kind("Soy Candle", "candles", "Home & Kitchen › Home Décor › Candles & Holders › Candles",
              "lead free, long lasting, hand poured", "soy wax, cotton wick, glass jar, wooden lid",
              "bath evenings, dinner table", {"scent": SCENTS, "size": PACKS}, 8, 48),
    ),
    "grocery": (
        _kind("Trail Mix", "trail mix", "Grocery & Gourmet Food › Snacks & Sweets › Trail Mix",
              "gluten free, non gmo, lightly roasted",
              "dried fruit, dietary fiber, pumpkin seeds, whole almonds",
              "school lunch, long hikes", {"flavor": FLAVORS, "size": PACKS}, 6, 45),
        _kind("Ground Coffee", "coffee", "Grocery & Gourmet Food › Beverages › Coffee, Tea & Cocoa › Coffee",
              "fair trade, small batch, low acid", "arabica beans, resealable bag, nutty notes, medium roast",
              "cold brew, morning cups", {"size": PACKS, "style": ["whole bean", "coarse ground",
              "fine ground"]}, 8, 60),
        _kind("Herbal Tea", "tea", "Grocery & Gourmet Food › Beverages › Coffee, Tea & Cocoa › Tea",
              "caffeine free, usda organic, hand picked",
              "lemon balm, pyramid bags, ginger root, rose petals",
              "quiet evenings, iced tea", {"flavor": FLAVORS, "size": PACKS}, 5, 40),
        _kind("Oat Crackers", "snack crackers",
              "Grocery & Gourmet Food › Snacks & Sweets › Crackers › Snack Crackers",
              "dairy free, low sugar, stone baked", "whole grain, sesame seeds, olive oil, protein serving",
              "cheese boards, office snacks", {"flavor": FLAVORS, "size": PACKS}, 4, 36),
        _kind("Pasta Sauce", "pasta sauces",
              "Grocery & Gourmet Food › Sauces, Gravies & Marinades › Pasta Sauces",
              "fat free, slow cooked, ready use", "ripe tomatoes, basil leaves, sea salt, glass jar",
              "family dinner, pizza night", {"flavor": FLAVORS, "size": PACKS}, 5, 38),
    ),
}  # fmt: skip
