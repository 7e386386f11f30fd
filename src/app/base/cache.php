<?php

// What `config('cache')` is where an app does not say, by $version (5.8.35 is 50835).
// Only what a queue worker asks for; docs/protocol/app-config.md 5.1 and 8.

use Illuminate\Support\Str;

$from_env = $version >= 110000;
$name = (string) env('APP_NAME', 'laravel');
$prefix = match (true) {
    $version >= 130000 => Str::slug($name, '-').'-cache-',
    $version >= 90001 => Str::slug($name, '_').'_cache_',
    $version >= 50522 => Str::slug($name, '_').'_cache',
    default => 'laravel',
};

return [
    'default' => $from_env ? env('CACHE_STORE', 'database') : env('CACHE_DRIVER', 'file'),
    'stores' => [
        'array' => ['driver' => 'array', ...($version >= 70300 ? ['serialize' => false] : [])],
        'database' => [
            'driver' => 'database',
            'connection' => $from_env ? env('DB_CACHE_CONNECTION') : null,
            'table' => $from_env ? env('DB_CACHE_TABLE', 'cache') : 'cache',
            ...($version >= 80506 ? ['lock_connection' => $from_env ? env('DB_CACHE_LOCK_CONNECTION') : null] : []),
            ...($version >= 111700 ? ['lock_table' => env('DB_CACHE_LOCK_TABLE')] : []),
        ],
        'file' => [
            'driver' => 'file',
            'path' => storage_path('framework/cache/data'),
            ...($version >= 100202 ? ['lock_path' => storage_path('framework/cache/data')] : []),
        ],
        'memcached' => [
            'driver' => 'memcached',
            'persistent_id' => env('MEMCACHED_PERSISTENT_ID'),
            'sasl' => [env('MEMCACHED_USERNAME'), env('MEMCACHED_PASSWORD')],
            'options' => [],
            'servers' => [
                ['host' => env('MEMCACHED_HOST', '127.0.0.1'), 'port' => env('MEMCACHED_PORT', 11211), 'weight' => 100],
            ],
        ],
        'redis' => [
            'driver' => 'redis',
            'connection' => match (true) {
                $from_env => env('REDIS_CACHE_CONNECTION', 'cache'),
                $version >= 50700 => 'cache',
                default => 'default',
            },
            ...($version >= 80506 ? ['lock_connection' => $from_env ? env('REDIS_CACHE_LOCK_CONNECTION', 'default') : 'default'] : []),
        ],
        ...($version >= 80518 ? ['octane' => ['driver' => 'octane']] : []),
        ...($version >= 123500 ? ['failover' => ['driver' => 'failover', 'stores' => ['database', 'array']]] : []),
    ],
    'prefix' => $version >= 50522 ? env('CACHE_PREFIX', $prefix) : $prefix,
];
