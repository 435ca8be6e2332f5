-- The largest drafted tree of the runs; where several are as large, the first one.
-- grain: one row per node, in order
-- node     number of the node
-- parent   its parent, -1 the root
WITH largest AS (
    SELECT run_id, prompt_id, step
    FROM steps
    WHERE n_nodes > 0
    ORDER BY n_nodes DESC, run_id, prompt_id, step
    LIMIT 1
)

SELECT nodes.node, nodes.parent
FROM nodes
JOIN largest USING (run_id, prompt_id, step)
ORDER BY nodes.node
