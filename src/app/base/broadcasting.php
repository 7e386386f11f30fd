<?php

// What `config('broadcasting')` is where an app does not say, by $version (5.8.35 is 50835).
// Only what publishing on Redis asks for; docs/protocol/commands.md 16.

$from_env = $version >= 110000;

return [
    'default' => $from_env ? env('BROADCAST_CONNECTION', 'null') : env('BROADCAST_DRIVER', 'null'),
    'connections' => [
        ...($from_env ? ['reverb' => ['driver' => 'reverb']] : []),
        'pusher' => ['driver' => 'pusher'],
        ...($version >= 70000 ? ['ably' => ['driver' => 'ably']] : []),
        ...($from_env ? [] : ['redis' => ['driver' => 'redis', 'connection' => 'default']]),
        'log' => ['driver' => 'log'],
        'null' => ['driver' => 'null'],
    ],
];
