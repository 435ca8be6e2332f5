-- The path of first children (child_rank 0 all the way), which a chain draft would have proposed.
-- grain: one row per prompt of a run and depth
-- run_id, domain, prompt_id  keys
-- depth              distance from the root, from 1
-- n_nodes            nodes of the first paths: one a step that reaches this depth (count)
-- n_argmax           those whose token is the target's argmax (count)
-- sum_path_overlap   sum over steps of the product of the overlaps from the root's context down to this node's parent
WITH RECURSIVE path AS (
    SELECT run_id, domain, prompt_id, step, node, depth, is_target_argmax, overlap::DOUBLE AS path_overlap
    FROM nodes
    WHERE depth = 1 AND child_rank = 0
    UNION ALL
    SELECT
        child.run_id,
        child.domain,
        child.prompt_id,
        child.step,
        child.node,
        child.depth,
        child.is_target_argmax,
        path.path_overlap * child.overlap
    FROM path
    JOIN nodes AS child
        ON child.run_id = path.run_id
        AND child.prompt_id = path.prompt_id
        AND child.step = path.step
        AND child.parent = path.node
    WHERE child.child_rank = 0
)
SELECT
    run_id,
    domain,
    prompt_id,
    depth,
    count(*) AS n_nodes,
    count(*) FILTER (is_target_argmax) AS n_argmax,
    sum(path_overlap) AS sum_path_overlap
FROM path
GROUP BY run_id, domain, prompt_id, depth
ORDER BY run_id, domain, prompt_id, depth
