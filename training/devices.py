"""The option --device of programs that compute with PyTorch."""

import argparse


def device_name(text):
    """Returns the name of a device of PyTorch that is there."""
    if text != "cpu":
        import torch  # some programs need it for other devices alone
        try:
            torch.empty(0, device=text)
        except (AssertionError, RuntimeError) as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no device here: {str(error).splitlines()[0]}") from error
    return text
