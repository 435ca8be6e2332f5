-- What the steps of the runs cost, by the size of their tree.
-- grain: one row per number of nodes and levels
-- n_nodes     drafted nodes; the target pass has one token more, the root (count)
-- n_levels    depth of the tree, which is the number of draft passes; 0 where nothing was drafted
-- n_steps     steps of that size (count)
-- draft_ms, verify_ms, other_ms   mean times a step (ms)
WITH levels AS (
    SELECT run_id, prompt_id, step, max(depth) AS n_levels
    FROM nodes
    GROUP BY run_id, prompt_id, step
)
SELECT
    n_nodes,
    coalesce(n_levels, 0) AS n_levels,
    count(*) AS n_steps,
    avg(draft_ms::DOUBLE) AS draft_ms,
    avg(verify_ms::DOUBLE) AS verify_ms,
    avg(other_ms::DOUBLE) AS other_ms
FROM steps
LEFT JOIN levels USING (run_id, prompt_id, step)
GROUP BY n_nodes, coalesce(n_levels, 0)
ORDER BY n_nodes, n_levels
