"""Models and datasets: pinned to a commit, laid out so that they load with the network off."""
