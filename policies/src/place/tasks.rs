//! Tasks out of launches: launches that share a memory object are placed together (A5.1).
//!
//! Law: two launches are in one task exactly if a chain of shared objects joins them.

/// A memory object.
pub type Object = u32;

/// Tasks as lists of launches, each given by the objects that it uses: by union and find over the
/// objects. Tasks and launches are in the order of the launches.
pub fn by_objects(launches: &[Vec<Object>]) -> Vec<Vec<usize>> {
    let mut parent: Vec<usize> = (0..launches.len()).collect();
    fn root(parent: &mut [usize], mut of: usize) -> usize {
        while parent[of] != of {
            parent[of] = parent[parent[of]];
            of = parent[of];
        }
        of
    }
    let mut first_user = std::collections::BTreeMap::new();
    for (launch, objects) in launches.iter().enumerate() {
        for object in objects {
            let user = *first_user.entry(*object).or_insert(launch);
            let (one, other) = (root(&mut parent, user), root(&mut parent, launch));
            let (low, high) = (one.min(other), one.max(other));
            parent[high] = low;
        }
    }
    let mut tasks = std::collections::BTreeMap::<usize, Vec<usize>>::new();
    for launch in 0..launches.len() {
        tasks
            .entry(root(&mut parent, launch))
            .or_default()
            .push(launch);
    }
    tasks.into_values().collect()
}

/// Algorithm 1 as printed: each launch is compared with the first of a task alone, so that chains
/// are cut.
pub fn as_printed(launches: &[Vec<Object>]) -> Vec<Vec<usize>> {
    let mut visited = vec![false; launches.len()];
    let mut tasks = Vec::new();
    for seed in 0..launches.len() {
        if visited[seed] {
            continue;
        }
        let shares = |other: &usize| {
            *other == seed || launches[*other].iter().any(|o| launches[seed].contains(o))
        };
        let task: Vec<usize> = (seed..launches.len())
            .filter(|other| !visited[*other])
            .filter(shares)
            .collect();
        task.iter().for_each(|launch| visited[*launch] = true);
        tasks.push(task);
    }
    tasks
}
