"""The program ``neuron-plugin``: the code that runs before anything that takes long to import.

From here on Ctrl-C ends a command at once and silently. Commands that have to clean up (the daemons, the demo, the
playground) install their own handler before they create anything.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_INTERRUPTED = 130
"""The status that shells report (128 + SIGINT); ``Exit.INTERRUPTED`` is not imported yet."""


def entry() -> NoReturn:
    """Run the command in the arguments, and end with its status."""
    # A KeyboardInterrupt may occur anywhere: during an import it gives a traceback, in a C extension a crash.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise the shell ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from neuron_plugin.cli.main import main

    sys.exit(main())


if __name__ == "__main__":
    entry()
