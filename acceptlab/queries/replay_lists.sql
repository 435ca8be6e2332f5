-- For the nodes of replay_nodes: where the target's stored list of most probable tokens has each of them.
-- parameters: $first, $last: numbers of the first and last prompt (table prompt_groups)
-- grain: one row per node, in the order of replay_nodes
-- listed_prob   the list's entry for the token, model distribution, rounded down; null where the list ends before it
-- n_listed      length of the list (tokens)
-- last_prob     its last entry
-- listed_mass   sum of its entries
SELECT
    contexts.target_probs[nodes.target_rank + 1] AS listed_prob,
    len(contexts.target_probs) AS n_listed,
    contexts.target_probs[len(contexts.target_probs)] AS last_prob,
    list_sum(contexts.target_probs) AS listed_mass
FROM nodes
JOIN prompt_groups ON prompt_groups.run_id = nodes.run_id AND prompt_groups.prompt_id = nodes.prompt_id
LEFT JOIN contexts
    ON contexts.run_id = nodes.run_id
    AND contexts.prompt_id = nodes.prompt_id
    AND contexts.step = nodes.step
    AND contexts.node = nodes.parent
WHERE prompt BETWEEN $first AND $last
ORDER BY prompt, nodes.run_id, nodes.step, nodes.node
