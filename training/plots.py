"""PNG charts for training and evaluation."""

import matplotlib

matplotlib.use("Agg")  # no display where models are trained
from matplotlib import pyplot  # noqa: E402


def _save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_learning_curve(path, train, held_out, metric):
    """train: [(tokens, bits per token)], held_out: [(tokens, metric)]; an axis for each."""
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
    """table: {max_centroids: [(context length, bits per byte)]}."""
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
