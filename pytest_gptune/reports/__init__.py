"""How results are shown: terminal and JSON. Everything here reads plain records and decides nothing."""
