"""PNG charts for training and evaluation."""

import matplotlib

matplotlib.use("Agg")  # no display where models are trained
from matplotlib import pyplot  # noqa: E402


def _save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_learning_curve(path, train, held_out):
    """train, held_out: [(tokens, bits per byte)]."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot([t / 1e6 for t, _ in train], [b for _, b in train], linewidth=0.8, label="training")
    axes.plot([t / 1e6 for t, _ in held_out], [b for _, b in held_out], marker=".",
              label="held out")
    axes.set_xlabel("million tokens seen")
    axes.set_ylabel("bits per byte")
    axes.set_ylim(1.0, 4.0)
    axes.grid(alpha=0.3)
    axes.legend()
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
