-- Children of accepted parents by depth and child_rank, from which acceptance by rank and depth follows.
-- grain: one row per prompt of a run, depth and child_rank
-- run_id, domain, prompt_id  keys
-- depth        distance from the root, from 1
-- child_rank   order in which the rule tries the siblings, from 0
-- n_offered    drafted nodes whose parent was accepted, or is the root (count)
-- n_accepted   accepted ones (count)
WITH accepted AS (
    SELECT run_id, prompt_id, step, node
    FROM nodes
    WHERE outcome = 'accepted'
),

offered AS (
    SELECT run_id, domain, prompt_id, depth, child_rank, outcome
    FROM nodes
    WHERE parent = -1
    UNION ALL
    SELECT nodes.run_id, nodes.domain, nodes.prompt_id, nodes.depth, nodes.child_rank, nodes.outcome
    FROM nodes
    JOIN accepted
        ON accepted.run_id = nodes.run_id
        AND accepted.prompt_id = nodes.prompt_id
        AND accepted.step = nodes.step
        AND accepted.node = nodes.parent
)

SELECT
    run_id,
    domain,
    prompt_id,
    depth,
    child_rank,
    count(*) AS n_offered,
    count(*) FILTER (outcome = 'accepted') AS n_accepted
FROM offered
GROUP BY run_id, domain, prompt_id, depth, child_rank
ORDER BY run_id, domain, prompt_id, depth, child_rank
