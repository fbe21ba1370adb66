"""One module per peer, each with a class `Peer`, loaded only in that peer's own environment.

`Peer(model, threads)` loads a model. `generate(ids, count, **options)` continues token ids greedily by
exactly `count` tokens and gives (new ids, seconds from the call to each of them). `logprob_sum(windows)`
gives the sum of natural log-probabilities of every token but the first of each window. `version` names what runs.
"""
