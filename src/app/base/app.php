<?php

// What `config('app')` is where an app does not say, by $version (5.8.35 is 50835).
// Only the keys that a queue worker asks for; docs/protocol/app-config.md 9.

return [
    'name' => env('APP_NAME', 'Laravel'),
    'env' => env('APP_ENV', 'production'),
    'timezone' => 110000 <= $version && $version < 120000 ? env('APP_TIMEZONE', 'UTC') : 'UTC',
    'key' => env('APP_KEY'),
    'cipher' => 'AES-256-CBC',
    ...($version >= 110000 ? [
        'previous_keys' => array_values(array_filter(explode(',', (string) env('APP_PREVIOUS_KEYS', '')))),
        'maintenance' => [
            'driver' => env('APP_MAINTENANCE_DRIVER', 'file'),
            'store' => env('APP_MAINTENANCE_STORE', 'database'),
        ],
    ] : []),
    ...(90106 <= $version && $version < 110000 ? ['maintenance' => ['driver' => 'file']] : []),
];
