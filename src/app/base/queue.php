<?php

// What `config('queue')` is where an app does not say, by $version (5.8.35 is 50835).
// Only what a queue worker asks for; docs/protocol/app-config.md 7.

$from_env = $version >= 110000;
$commit = $version >= 80513 ? ['after_commit' => false] : [];
$database = env('DB_CONNECTION', $from_env ? 'sqlite' : 'mysql');

return [
    'default' => $version >= 50700 ? env('QUEUE_CONNECTION', $from_env ? 'database' : 'sync') : env('QUEUE_DRIVER', 'sync'),
    'connections' => [
        'sync' => ['driver' => 'sync'],
        'database' => [
            'driver' => 'database',
            ...($from_env ? ['connection' => env('DB_QUEUE_CONNECTION')] : []),
            'table' => $from_env ? env('DB_QUEUE_TABLE', 'jobs') : 'jobs',
            'queue' => $from_env ? env('DB_QUEUE', 'default') : 'default',
            'retry_after' => $from_env ? (int) env('DB_QUEUE_RETRY_AFTER', 90) : 90,
            ...$commit,
        ],
        'redis' => [
            'driver' => 'redis',
            'connection' => $from_env ? env('REDIS_QUEUE_CONNECTION', 'default') : 'default',
            'queue' => $version >= 50713 ? env('REDIS_QUEUE', 'default') : 'default',
            'retry_after' => $from_env ? (int) env('REDIS_QUEUE_RETRY_AFTER', 90) : 90,
            ...($version >= 50600 ? ['block_for' => null] : []),
            ...$commit,
        ],
        ...($version >= 123500 ? [
            'deferred' => ['driver' => 'deferred'],
            'failover' => ['driver' => 'failover', 'connections' => ['database', 'deferred']],
        ] : []),
    ],
    ...($version >= 100006 ? ['batching' => ['database' => $database, 'table' => 'job_batches']] : []),
    'failed' => [
        ...($version >= 60000 ? ['driver' => env('QUEUE_FAILED_DRIVER', $version >= 80000 ? 'database-uuids' : 'database')] : []),
        'database' => $database,
        'table' => 'failed_jobs',
    ],
];
