-- Nodes with the draft's confidence, where temperature, top-k or top-p changed the sampling distribution.
-- grain: one row per node
-- run_id, domain, prompt_id  keys
-- confidence         the draft's model probability of the drafted token from its context's list, rounded down by at
--                    most 1 part in 128; null where the list ends before the token
-- accept_ratio, is_target_argmax, outcome   as in the table nodes
SELECT
    nodes.run_id,
    nodes.domain,
    nodes.prompt_id,
    contexts.draft_probs[nodes.draft_rank + 1]::DOUBLE AS confidence,
    nodes.accept_ratio,
    nodes.is_target_argmax,
    nodes.outcome
FROM nodes
LEFT JOIN contexts
    ON contexts.run_id = nodes.run_id
    AND contexts.prompt_id = nodes.prompt_id
    AND contexts.step = nodes.step
    AND contexts.node = nodes.parent
