"""Models, datasets and spaces: pinned to a commit, laid out so that they load with the network off.

On the builder:

    repository.py    what a repository is, wherever its files come from
    source.py        the flow: origins, selection, pickles, completeness
    origins/         where the files come from
    policy/          which of them are carried, and whether they would load

In a bundle and on the server:

    bundled.py       where a bundle has each revision's files
    layout.py        a cache of the Hub as values
    deploy.py        that cache in a new generation
    into_cache.py    the same beside what another cache holds; adding.py writes there
"""
