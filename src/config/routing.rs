//! Mappings with their handlers.

use super::handler::HandlerTable;
use super::mapping::MapTable;
use super::middleware::MiddlewareTable;
use super::place::place;
use super::policy::{by_default_with_php, can_serve_php, policy_error, unmapped};
use super::services::services;
use super::target::{Problem, TargetProblem};
use super::{Config, Error};
use crate::handler::Services;
use crate::middleware::Debounce;
use crate::routing::{
    HandlerChoice, Mapping, MappingError, PhpEvents, Registry, Router, UnmappedPolicy,
};

/// Looks up the handlers of all mappings.
///
/// # Errors
///
/// A bad pattern, an unknown handler or policy, with file and line.
pub fn router(config: &Config, registry: &Registry) -> Result<Router, Error> {
    let mappings = config.file.map.iter().map(|table| mapping(config, table));
    let mappings = mappings.collect::<Result<Vec<_>, _>>()?;
    let unmapped = unmapped(config)?;
    let events = events(config, &unmapped);
    let router = Router::new(mappings, unmapped, registry);
    let router = router.map_err(|at| mapping_error(config, at))?;
    let router = router.with_events(events);
    if router.raises_all() && !can_serve_php(config) {
        return Err(policy_error(
            config,
            "`events = \"all\"` needs the Laravel app, 8 or later, whose PHP raises them: give its directory with --app, ARTISAND_APP or `app` in artisand.toml".to_owned(),
        ));
    }
    Ok(router)
}

/// Laravel's events that PHP raises for jobs of handlers: by default of failures, where a PHP is known that does it.
fn events(config: &Config, unmapped: &UnmappedPolicy) -> PhpEvents {
    let has_php = *unmapped == UnmappedPolicy::Php || config.file.php.queue.is_some();
    let default = if has_php {
        PhpEvents::Failures
    } else {
        PhpEvents::None
    };
    config.file.php.events.unwrap_or(default)
}

fn mapping(config: &Config, table: &MapTable) -> Result<Mapping, Error> {
    let mut mapping = to_mapping(table).map_err(|wrong| {
        let place = place(&config.path, wrong.offset);
        match wrong.problem {
            Problem::Name(source) => Error::Pattern { place, source },
            Problem::Keys(problem) => Error::Target { place, problem },
        }
    })?;
    if let Some(environment) = mapping.handler.environment()
        && environment.directory.is_none()
    {
        environment.directory = config.directory_of_programs();
    }
    Ok(mapping)
}

fn mapping_error(config: &Config, (position, source): (usize, MappingError)) -> Error {
    let table = &config.file.map[position];
    // Of a mapping that became one, it was read before.
    let target = table.target().map(|target| target.to_string());
    Error::Mapping {
        place: place(&config.path, table.handler.span().start),
        target: target.unwrap_or_default(),
        source,
    }
}

/// Says which mapping has middleware that needs something of the app that is not there.
///
/// # Errors
///
/// File, line and what is missing.
pub fn check_middleware(
    config: &Config,
    router: &Router,
    services: &Services,
) -> Result<(), Error> {
    router
        .check(services)
        .map_err(|at| mapping_error(config, at))
}

/// Classes with middleware in PHP whose jobs run here without any.
pub fn classes_without_their_middleware<'a>(config: &'a Config, router: &Router) -> Vec<&'a str> {
    let classes = config
        .manifest
        .iter()
        .flat_map(|(_, manifest)| manifest.targets());
    let with_middleware = classes.filter(|(_, class)| class.has_middleware());
    with_middleware
        .map(|(name, _)| name)
        .filter(|name| router.has_middleware(name) == Some(false))
        .collect()
}

/// What is wrong with mappings and the policy for unmapped jobs, each with its line.
pub(super) fn mistakes(config: &Config, registry: &Registry) -> Vec<Error> {
    let policy = config.file.unmapped.to_policy();
    let unmapped = policy.as_ref().ok().cloned().flatten();
    // Whether PHP runs is not known here.
    let unmapped = unmapped.unwrap_or_else(|| by_default_with_php(config));
    let of_mapping = |(position, table): (usize, &MapTable)| {
        let routed = mapping(config, table).and_then(|mapping| {
            let routed = Router::new(vec![mapping], unmapped.clone(), registry);
            routed.map_err(|(_, source)| mapping_error(config, (position, source)))
        });
        routed.err()
    };
    let mappings = config.file.map.iter().enumerate().filter_map(of_mapping);
    let policy = policy.err().map(|problem| policy_error(config, problem));
    let mut mistakes: Vec<Error> = mappings.chain(policy).collect();
    // What middleware needs of the app may be only in what PHP says.
    let is_known = !config.is_php_unasked || config.manifest.is_some();
    if mistakes.is_empty() && config.laravel.is_some() && is_known {
        let mappings = config.file.map.iter().map(|table| mapping(config, table));
        let mappings = mappings.filter_map(Result::ok).collect();
        if let Ok(router) = Router::new(mappings, unmapped, registry) {
            let services = services(config);
            let checked =
                services.and_then(|services| check_middleware(config, &router, &services));
            mistakes.extend(checked.err());
        }
    }
    mistakes
}

/// The handler of a mapping; `None` if the mapping has a mistake.
pub(super) fn handler(table: &MapTable) -> Option<HandlerChoice> {
    to_mapping(table).ok().map(|mapping| mapping.handler)
}

fn to_mapping(table: &MapTable) -> Result<Mapping, TargetProblem> {
    Ok(Mapping {
        target: table.target()?,
        handler: match table.handler.get_ref() {
            HandlerTable::Named(name) => HandlerChoice::Named(name.clone()),
            HandlerTable::Exec(options) => HandlerChoice::Exec(options.clone()),
            HandlerTable::Persistent(options) => HandlerChoice::Persistent(options.clone()),
            #[cfg(feature = "http")]
            HandlerTable::Http(options) => HandlerChoice::Http(options.clone()),
            HandlerTable::Forward(queue) => HandlerChoice::Forward(queue.as_str().into()),
        },
        concurrency: table.concurrency,
        middleware: table
            .middleware
            .iter()
            .map(MiddlewareTable::to_middleware)
            .collect(),
        debounce: table.debounce.clone().map(Debounce::new),
        canary: table.canary,
        mode: table.mode,
        on_mismatch: table.on_mismatch,
        failed: table.failed,
        events: table.events,
        is_never_unique: table.is_never_unique(),
    })
}
