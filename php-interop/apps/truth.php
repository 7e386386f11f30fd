<?php

/**
 * Read by `truth` as its standard input, in the directory of an app.
 */

// PHP does not define these when it reads a program from standard input.
foreach (['STDIN' => 'r', 'STDOUT' => 'w', 'STDERR' => 'w'] as $constant => $mode) {
    defined($constant) || define($constant, fopen('php://'.strtolower($constant), $mode));
}

ob_start();

require 'vendor/autoload.php';
$app = require 'bootstrap/app.php';
$app->make(Illuminate\Contracts\Console\Kernel::class)->bootstrap();

$plain = function ($value) use (&$plain) {
    return match (true) {
        is_array($value) => array_map($plain, $value),
        is_object($value) => ['$php' => get_class($value)]
            + ($value instanceof BackedEnum ? ['value' => $value->value] : []),
        is_resource($value) => ['$php' => 'resource'],
        is_float($value) && ! is_finite($value) => ['$php' => 'float '.strtoupper((string) $value)],
        is_string($value) && ! mb_check_encoding($value, 'UTF-8') => ['$bytes' => base64_encode($value)],
        default => $value,
    };
};
$errors = [];
$attempt = function (string $what, callable $callback) use (&$errors) {
    try {
        return $callback();
    } catch (Throwable $e) {
        $errors[$what] = get_class($e).': '.$e->getMessage();

        return null;
    }
};

/** Parses like Laravel, then connects to the test's server, whatever the address was. */
$manager = new class ($app, 'phpredis', (array) config('database.redis')) extends Illuminate\Redis\RedisManager {
    public ?array $server = null;

    public function parsed($config): array
    {
        return parent::parseConnectionConfiguration($config);
    }

    protected function parseConnectionConfiguration($config)
    {
        $parsed = array_diff_key(
            parent::parseConnectionConfiguration($config),
            array_flip(['username', 'password', 'scheme', 'context', 'persistent', 'max_retries', 'backoff_algorithm'])
        );

        return ['host' => $this->server[0], 'port' => (int) $this->server[1], 'database' => 0] + $parsed;
    }
};

$connections = array_diff_key((array) config('database.redis'), array_flip(['client', 'options', 'clusters']));
$parsed = [];
$prefixes = [];
$server = explode(':', (string) getenv('TRUTH_REDIS'), 2);
$reachable = count($server) === 2 && @fsockopen($server[0], (int) $server[1], $number, $message, 1.0);
foreach ($connections as $name => $config) {
    $parsed[$name] = $attempt("redis {$name}", fn () => $manager->parsed($config));
    if ($reachable && config('database.redis.client') === 'phpredis') {
        $manager->server = $server;
        $prefix = $attempt("redis prefix {$name}", fn () => (string) $manager->resolve($name)->client()
            ->getOption(Redis::OPT_PREFIX));
        if ($prefix !== null) {
            $prefixes[$name] = $prefix;
        }
    }
}

$databases = [];
foreach ((array) config('database.connections') as $name => $config) {
    $databases[$name] = $attempt(
        "database {$name}",
        fn () => (new Illuminate\Support\ConfigurationUrlParser())->parseConfiguration($config)
    );
}

$cachePrefixes = [];
foreach ((array) config('cache.stores') as $name => $store) {
    // Memcached needs its extension, and DynamoDB a library.
    if (in_array($store['driver'] ?? null, ['redis', 'database'], true)) {
        $prefix = $attempt("cache {$name}", fn () => (string) app('cache')->store($name)->getStore()->getPrefix());
        if ($prefix !== null) {
            $cachePrefixes[$name] = $prefix;
        }
    }
}

$failer = $attempt('failer', fn () => get_class(app('queue.failer')));

$application = [];
foreach (['name', 'env', 'cipher', 'timezone', 'key', 'previous_keys', 'maintenance'] as $key) {
    $application[$key] = config("app.{$key}");
}

while (ob_get_level() > 0) {
    ob_end_clean();
}
echo json_encode([
    'laravel' => Illuminate\Foundation\Application::VERSION,
    'php' => PHP_VERSION,
    'paths' => [
        'base' => $app->basePath(),
        'storage' => $app->storagePath(),
        'config_cache' => is_file($app->getCachedConfigPath()) ? $app->getCachedConfigPath() : null,
    ],
    'config' => $plain([
        'app' => $application,
        'queue' => config('queue'),
        'cache' => config('cache'),
        'database' => config('database'),
    ]),
    'redis_connections' => (object) $plain($parsed),
    'redis_prefixes' => (object) $prefixes,
    'database_connections' => (object) $plain($databases),
    'cache_prefixes' => (object) $cachePrefixes,
    'failer' => $failer,
    'errors' => (object) $errors,
], JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION | JSON_THROW_ON_ERROR), "\n";
