"""`python -m gloronet VERB …`."""

from gloronet.cli import main

raise SystemExit(main())
