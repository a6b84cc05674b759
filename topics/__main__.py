from topics.cli import main

raise SystemExit(main())
