"""The program ``neuron-plugin``: what runs first, before anything that takes long to import.

From here on Ctrl-C ends a command at once, without a word. What leaves something behind that has to be cleaned up (the
daemons, the demo, the playground) takes the signal over before it makes that.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_INTERRUPTED = 130
"""As shells report it (128 + SIGINT); ``Exit.INTERRUPTED`` is not imported yet."""


def entry() -> NoReturn:
    """Run the command that the arguments name, and end with its status."""
    # A KeyboardInterrupt would strike anywhere: in an import as a traceback, in that of a C extension as a crash.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the shell lets it be ignored
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from neuron_plugin.cli.main import main

    sys.exit(main())


if __name__ == "__main__":
    entry()
