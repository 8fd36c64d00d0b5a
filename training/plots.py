"""PNG charts for training and evaluation."""

import dataclasses
import sys

try:
    import matplotlib
except ImportError:
    pyplot = None
else:
    matplotlib.use("Agg")  # machines that train have no display
    from matplotlib import pyplot

MISSING = "matplotlib is not installed (package python3-matplotlib)"


def available():
    return pyplot is not None


def require():
    """Ends a program that requires charts."""
    if not available():
        sys.exit(f"{MISSING}: this program draws charts")


def _save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_learning_curve(path, train, held_out, metric):
    """Draws train [(tokens, bits per token)] and held_out [(tokens, metric)], each with an axis of
    its own."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot([t / 1e6 for t, _ in train], [b for _, b in train], linewidth=0.8, color="tab:blue")
    axes.set_xlabel("million tokens seen")
    axes.set_ylabel("training loss, bits per token", color="tab:blue")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    right = axes.twinx()
    right.plot([t / 1e6 for t, _ in held_out], [m for _, m in held_out], marker=".",
               color="tab:orange")
    right.set_ylabel(metric.replace("_", " "), color="tab:orange")
    right.set_ylim(bottom=0)
    _save(figure, path)


def plot_context_lengths(path, table):
    """Draws table: {max_centroids: [(context length, bits per byte)]}."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for max_centroids, points in table.items():
        axes.plot([n for n, _ in points], [b for _, b in points], marker="o",
                  label=f"{max_centroids} centroids")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("context length in bytes")
    axes.set_ylabel("held-out bits per byte")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


@dataclasses.dataclass(frozen=True)
class Line:
    """points: [(x, y, standard error, the distances (down, up) to a range's ends, or None)];
    centroids: "512", "0.3x" or None."""
    label: str
    mixer: str
    centroids: str | None
    ablation: str
    points: list


@dataclasses.dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes; mark: x of a vertical line."""
    title: str
    x_label: str
    y_label: str
    lines: list
    mark: int | None = None


_MIXER_STYLES = {"full": {"color": "black", "marker": "s"}, "vq": {"color": "red", "marker": "^"},
                 "sliding": {"color": "gray", "marker": "v"}, "kvm": {"marker": "D"},
                 "cache": {"color": "black", "linestyle": ":"},
                 "gdn": {"color": "tab:orange", "marker": "P"},
                 "mamba2": {"color": "tab:pink", "marker": "X"},
                 "mesa": {"color": "tab:brown", "marker": "*"},
                 "lattice": {"color": "tab:purple", "marker": "<"},
                 "tvq": {"color": "tab:red", "marker": ">"}}
_ABLATION_STYLES = ("--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_MAX_COLUMNS = 3
_LETTER_WIDTH, _HANDLE_WIDTH, _LEGEND_ROW = 0.06, 0.55, 0.18  # sizes of a legend's entry, in inches


def _styles(lines):
    """Returns {label: style}: baselines black and red, dictionaries in viridis by size, with full
    attention, too."""
    def size(centroids):  # ratios come after all numbers
        ratio = centroids.endswith("x")
        return ratio, float(centroids[:-1] if ratio else centroids)

    sizes = sorted({line.centroids for line in lines if line.centroids}, key=size)
    ablations = sorted({line.ablation for line in lines} - {"none"})
    styles = {}
    for line in lines:
        style = {"linestyle": "-", "marker": "o", **_MIXER_STYLES.get(line.mixer, {})}
        if line.ablation != "none":
            style["linestyle"] = _ABLATION_STYLES[ablations.index(line.ablation) % len(_ABLATION_STYLES)]
        if line.centroids:
            # yellow, the map's end, is hard to see on white
            shade = 0.85 * sizes.index(line.centroids) / max(1, len(sizes) - 1)
            style["color"] = pyplot.get_cmap("viridis")(shade)
        styles[line.label] = style
    return styles


def _tokens_text(x, _):
    return f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"


def _bytes_text(y, _):
    unit, name = (1 << 20, "MiB") if y >= 1 << 20 else (1 << 10, "KiB")
    return f"{y / unit:g} {name}"


def _draw_panel(axes, panel, styles):
    for line in panel.lines:
        x, y, errors = zip(*line.points)
        if None in errors:
            errors = None
        elif isinstance(errors[0], tuple):
            errors = list(zip(*errors))
        axes.errorbar(x, y, errors, markersize=4, linewidth=1.3, elinewidth=0.7, capsize=2,
                      label=line.label, **styles[line.label])
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.x_label.startswith(("length", "position")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(_tokens_text)
    if panel.y_label == "accuracy":
        axes.set_ylim(-0.03, 1.03)
    if panel.y_label == "bytes":
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(_bytes_text)
    if panel.mark:
        axes.axvline(panel.mark, color="gray", linewidth=0.8, linestyle="--")
    axes.grid(alpha=0.3)


def plot_panels(path, panels):
    """Draws panels side by side, up to three in a row, with one legend below."""
    n_rows = -(-len(panels) // _MAX_COLUMNS)
    n_columns = -(-len(panels) // n_rows)
    styles = _styles([line for panel in panels for line in panel.lines])
    width = 4.6 * n_columns
    label_width = _LETTER_WIDTH * max(map(len, styles)) + _HANDLE_WIDTH
    n_legend_columns = max(1, min(5, 2 * n_columns, int(width / label_width)))
    n_legend_rows = -(-len(styles) // n_legend_columns)
    height = 3.6 * n_rows + _LEGEND_ROW * n_legend_rows + 0.2
    figure, grid = pyplot.subplots(n_rows, n_columns, figsize=(width, height), squeeze=False)
    for axes in grid.flat[len(panels):]:
        axes.axis("off")
    handles = {}
    for axes, panel in zip(grid.flat, panels):
        _draw_panel(axes, panel, styles)
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="lower center",
                  ncol=n_legend_columns, fontsize=8, frameon=False)
    # leaves the strip at the bottom to the legend
    figure.tight_layout(rect=(0, (_LEGEND_ROW * n_legend_rows + 0.1) / height, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
