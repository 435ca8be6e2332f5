-- The shapes of the drafted trees: a static tree has one row per node of it.
-- grain: one row per run, node and place of that node
-- run_id, node   keys
-- parent         node index of the parent; -1 is the root
-- depth          distance from the root, from 1
-- child_rank     order in which the rule tries the siblings, from 0
-- n_steps        steps that have the node there (count)
SELECT run_id, node, parent, depth, child_rank, count(*) AS n_steps
FROM nodes
GROUP BY run_id, node, parent, depth, child_rank
ORDER BY run_id, node, parent, depth, child_rank
