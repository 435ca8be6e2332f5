-- Depth of the drafted trees: the longest path that a step could have accepted.
-- grain: one row per prompt of a run that drafted something
-- run_id, domain, prompt_id  keys
-- n_trees         steps that drafted at least one node (count)
-- sum_tree_depth  sum over steps of the deepest node's depth (tokens)
WITH trees AS (
    SELECT run_id, domain, prompt_id, step, max(depth) AS tree_depth
    FROM nodes
    GROUP BY run_id, domain, prompt_id, step
)
SELECT run_id, domain, prompt_id, count(*) AS n_trees, sum(tree_depth)::BIGINT AS sum_tree_depth
FROM trees
GROUP BY run_id, domain, prompt_id
ORDER BY run_id, domain, prompt_id
