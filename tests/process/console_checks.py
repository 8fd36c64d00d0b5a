"""Computed accessibility checks of the console: contrasts and keyboard navigation."""

import re

# WCAG 2.1 contrast of text (1.4.3), and of controls and parts of figures (1.4.11).
TEXT, EDGE = 4.5, 3.0

# Foreground and background colours that occur together, by their names in colors.css.
PAIRS = [
    *[(text, ground, TEXT) for text in ("text", "muted") for ground in ("page", "panel", "raised", "tint", "accent-soft")],
    *[("accent", ground, TEXT) for ground in ("page", "panel", "raised")],
    *[("danger", ground, TEXT) for ground in ("page", "panel", "raised")],
    ("text", "danger-soft", TEXT), ("on-accent", "accent", TEXT), ("on-danger", "danger", TEXT),
    ("cache", "page", TEXT), ("cache", "panel", EDGE),
    *[("edge", ground, EDGE) for ground in ("page", "panel", "raised")],
    ("danger", "danger-soft", EDGE),
]


def luminance(colour):
    def linear(part):
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
    red, green, blue = (linear(part / 255) for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, two):
    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)


def poor_colours(css):
    """Returns the pairs of colors.css with too little contrast, in either scheme."""
    light, dark = css.split("prefers-color-scheme: dark")
    found = []
    for name, scheme in (("light", light), ("dark", dark)):
        colours = {key: tuple(bytes.fromhex(value)) for key, value in re.findall(r"--([\w-]+): #([0-9a-f]{6});", scheme)}
        for front, ground, least in PAIRS:
            ratio = contrast(colours[front], colours[ground])
            if ratio < least:
                found.append(f"{name}: {front} on {ground}: {ratio:.2f}, expected {least}")
    return found


# Collects every visible text: its colour, and those of the backgrounds behind it, nearest first.
TEXTS = """(() => {
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const shown = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!shown || !element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    if (element.closest(".hidden, :disabled, option, noscript")) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.push(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element);
    const svg = element instanceof SVGElement;
    found.push([element.textContent.trim().slice(0, 40), svg ? style.fill : style.color, grounds]);
  }
  return found;
})()"""


def numbers(css):
    parts = [float(part) for part in re.findall(r"[\d.]+", css)]
    return tuple(parts[:3]), parts[3] if len(parts) > 3 else 1.0


def poor_contrasts(console):
    """Returns texts on the page with too little contrast, as the browser renders them."""
    found = []
    texts = console.run(TEXTS)
    assert len(texts) > 20, texts
    for text, colour, grounds in texts:
        front, alpha = numbers(colour)
        ground = next((numbers(one)[0] for one in grounds if numbers(one)[1] == 1), (255, 255, 255))
        if alpha < 1:
            front = tuple(alpha * a + (1 - alpha) * b for a, b in zip(front, ground))
        if contrast(front, ground) < TEXT:
            found.append((text, colour, grounds))
    return found


# Controls that Tab must reach: one of a group of radio buttons stands for all.
REACHABLE = """(() => {
  window.controls = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter((one) => !one.disabled && !one.closest("[inert], dialog:not([open])") &&
                     one.checkVisibility({visibilityProperty: true}) && !(one.type === "radio" && !one.checked));
  window.nameOf = (one) => one.dataset.key ?? one;  // rows of lists are made anew
  window.reached = new Set();
  window.unseen = [];
  return controls.length;
})()"""
REACHED = """(() => {
  const at = document.activeElement;
  reached.add(nameOf(at));
  // Where the control itself is not drawn, what is drawn for it shows the focus.
  const drawn = getComputedStyle(at).opacity === "0" ? at.nextElementSibling : at;
  const style = getComputedStyle(drawn);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  if (at !== document.body && !seen) unseen.push(at.outerHTML.slice(0, 90));
})()"""


def unreachable(console):
    """Returns controls that Tab does not reach, and those without a visible focus."""
    count = console.run(REACHABLE)
    for _ in range(count + 8):
        console.key("Tab")
        console.run(REACHED)
    return (console.run("controls.filter((one) => !reached.has(nameOf(one))).map((one) => one.outerHTML.slice(0, 90))"),
            console.run("unseen"))
