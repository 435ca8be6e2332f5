-- Nodes of a range of prompts, step by step, with what a rule reads of them.
-- parameters: $first, $last: numbers of the first and last prompt (table prompt_groups)
-- grain: one row per node, in the order of replay_steps
-- node, parent, child_rank, token_id   as in the table nodes
-- accept_ratio, test_prob, accept_prob             sampling distributions; null where undefined
-- target_prob      the token's probability under the target's sampling distribution
-- target_rank      its rank in the target's model distribution
-- target_top_prob  largest probability of the target's model distribution in the parent's context
-- target_entropy   its entropy (nats)
-- is_accepted, is_tested   outcome under the run's own rule
SELECT
    node,
    parent,
    child_rank,
    token_id,
    accept_ratio,
    test_prob,
    accept_prob,
    target_prob,
    target_rank,
    target_top_prob,
    target_entropy,
    outcome = 'accepted' AS is_accepted,
    outcome <> 'untested' AS is_tested
FROM nodes
JOIN prompt_groups USING (run_id, prompt_id)
WHERE prompt BETWEEN $first AND $last
ORDER BY prompt, run_id, step, node
