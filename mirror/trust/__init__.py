"""Who made a bundle: SSH signatures, the keys that are trusted, and what follows from both.

    wire.py     SSH's binary encoding
    curves.py   Ed25519 and ECDSA, checked
    keys.py     public keys
    sshsig.py   signatures as ssh-keygen makes them
    signers.py  files of trusted and of revoked keys
    store.py    where these files are; changing them
    listing.py  telling who is trusted
    judging.py  the rule by which a bundle is trusted
    signing.py  making keys and signatures, with private.py and program.py

All but signing works on a server with nothing but Python. docs/trust.md says what it is good for.
"""
