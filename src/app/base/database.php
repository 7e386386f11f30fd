<?php

// What `config('database')` is where an app does not say, by $version (5.8.35 is 50835).
// Only what a queue worker asks for; docs/protocol/app-config.md 5 and 6.

use Illuminate\Support\Str;

$from_env = $version >= 110000;
$name = (string) env('APP_NAME', 'laravel');

$url = match (true) {
    $from_env => ['url' => env('DB_URL')],
    $version >= 50816 => ['url' => env('DATABASE_URL')],
    default => [],
};
$server = [
    ...$url,
    'host' => env('DB_HOST', '127.0.0.1'),
    'database' => env('DB_DATABASE', $from_env ? 'laravel' : 'forge'),
    'username' => env('DB_USERNAME', $from_env ? 'root' : 'forge'),
    'password' => env('DB_PASSWORD', ''),
    'prefix' => '',
    ...($version >= 50713 ? ['prefix_indexes' => true] : []),
];
$mysql = [
    ...$server,
    'port' => env('DB_PORT', '3306'),
    'unix_socket' => env('DB_SOCKET', ''),
    'charset' => $from_env ? env('DB_CHARSET', 'utf8mb4') : 'utf8mb4',
    'collation' => $from_env ? env('DB_COLLATION', 'utf8mb4_unicode_ci') : 'utf8mb4_unicode_ci',
    'strict' => true,
    'engine' => null,
    ...($version >= 50800 ? ['options' => array_filter([PDO::MYSQL_ATTR_SSL_CA => env('MYSQL_ATTR_SSL_CA')])] : []),
];
$pgsql = [
    ...$server,
    'driver' => 'pgsql',
    'port' => env('DB_PORT', '5432'),
    'charset' => $from_env ? env('DB_CHARSET', 'utf8') : 'utf8',
    ($version >= 90000 ? 'search_path' : 'schema') => 'public',
    'sslmode' => 'prefer',
    ...($version >= 131700 ? [
        'pooled' => env('DB_POOLED', false),
        'direct' => array_filter([
            'host' => env('DB_DIRECT_HOST'),
            'port' => env('DB_DIRECT_PORT'),
            'username' => env('DB_DIRECT_USERNAME'),
            'password' => env('DB_DIRECT_PASSWORD'),
            'sslmode' => env('DB_DIRECT_SSLMODE'),
        ]),
    ] : []),
];

$redis = [
    ...($version >= 50835 ? ['url' => env('REDIS_URL')] : []),
    'host' => env('REDIS_HOST', '127.0.0.1'),
    ...($version >= 90103 ? ['username' => env('REDIS_USERNAME')] : []),
    'password' => env('REDIS_PASSWORD'),
    'port' => env('REDIS_PORT', $version >= 61200 ? '6379' : 6379),
    ...($version >= 122800 ? [
        'max_retries' => env('REDIS_MAX_RETRIES', 3),
        'backoff_algorithm' => env('REDIS_BACKOFF_ALGORITHM', 'decorrelated_jitter'),
        'backoff_base' => env('REDIS_BACKOFF_BASE', 100),
        'backoff_cap' => env('REDIS_BACKOFF_CAP', 1000),
    ] : []),
    ...($version >= 132600 ? ['command_retries' => env('REDIS_COMMAND_RETRIES', 0)] : []),
];
$prefix = match (true) {
    $version >= 130000 => Str::slug($name, '-').'-database-',
    default => Str::slug($name, '_').'_database_',
};

return [
    'default' => env('DB_CONNECTION', $from_env ? 'sqlite' : 'mysql'),
    'connections' => [
        'sqlite' => [
            'driver' => 'sqlite',
            ...$url,
            'database' => env('DB_DATABASE', database_path('database.sqlite')),
            'prefix' => '',
            ...($version >= 50713 ? ['foreign_key_constraints' => env('DB_FOREIGN_KEYS', true)] : []),
            ...($version >= 111600 ? ['busy_timeout' => null, 'journal_mode' => null, 'synchronous' => null] : []),
            ...($version >= 120000 ? ['prefix_indexes' => null] : []),
            ...($version >= 122600 ? ['transaction_mode' => 'DEFERRED'] : []),
            ...($version >= 122900 ? ['pragmas' => []] : []),
        ],
        'mysql' => [...$mysql, 'driver' => 'mysql'],
        ...($version >= 110000 ? ['mariadb' => [...$mysql, 'driver' => 'mariadb']] : []),
        'pgsql' => $pgsql,
        'sqlsrv' => [
            ...$server,
            'driver' => 'sqlsrv',
            'host' => env('DB_HOST', 'localhost'),
            'port' => env('DB_PORT', '1433'),
            'charset' => $from_env ? env('DB_CHARSET', 'utf8') : 'utf8',
        ],
    ],
    'redis' => [
        'client' => match (true) {
            $version >= 60000 => env('REDIS_CLIENT', 'phpredis'),
            $version >= 50800 => env('REDIS_CLIENT', 'predis'),
            default => 'predis',
        },
        ...($version >= 50800 ? ['options' => [
            'cluster' => env('REDIS_CLUSTER', $version >= 60000 ? 'redis' : 'predis'),
            ...($version >= 50835 ? ['prefix' => env('REDIS_PREFIX', $prefix)] : []),
            ...(50816 <= $version && $version < 50835 ? ['prefix' => $prefix] : []),
            ...($version >= 114201 ? ['persistent' => env('REDIS_PERSISTENT', false)] : []),
        ]] : []),
        'default' => [...$redis, 'database' => $version >= 50700 ? env('REDIS_DB', $version >= 61200 ? '0' : 0) : 0],
        ...($version >= 50700 ? ['cache' => [...$redis, 'database' => env('REDIS_CACHE_DB', $version >= 61200 ? '1' : 1)]] : []),
    ],
];
