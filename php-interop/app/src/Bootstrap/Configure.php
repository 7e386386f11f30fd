<?php

namespace App\Bootstrap;

use Illuminate\Config\Repository;
use Illuminate\Contracts\Foundation\Application;
use Illuminate\Support\Str;

/**
 * The configuration: that of the running Laravel version's skeleton for a
 * new app, with the environment variables that the tests set.
 */
class Configure
{
    public function bootstrap(Application $app): void
    {
        $app->instance('config', $config = new Repository($this->items($app)));
        $app->detectEnvironment(fn () => $config->get('app.env'));
        date_default_timezone_set($config->get('app.timezone'));
        mb_internal_encoding('UTF-8');
    }

    /** Reads an environment variable; `null` and the empty text count as not set. */
    private function env(string $name, mixed $default = null): mixed
    {
        $value = getenv($name);

        return $value === false || $value === '' || $value === 'null' ? $default : $value;
    }

    private function number(string $name, ?int $default): ?int
    {
        $value = $this->env($name, $default);

        return $value === null ? null : (int) $value;
    }

    /** @return array{string, array<string, array>}  name of the default connection, all connections */
    private function databases(Application $app): array
    {
        $default = $this->env('DB_CONNECTION', 'sqlite');
        if ($default === 'mariadb' && version_compare($app->version(), '11.0', '<')) {
            $default = 'mysql';
        }
        $file = $default === 'sqlite' ? $this->env('DB_DATABASE') : null;

        $server = [
            'host' => $this->env('DB_HOST', '127.0.0.1'),
            'database' => $this->env('DB_DATABASE', 'laravel'),
            'username' => $this->env('DB_USERNAME', 'root'),
            'password' => $this->env('DB_PASSWORD', ''),
            'prefix' => '',
            'prefix_indexes' => true,
        ];
        $mysql = $server + [
            'port' => $this->env('DB_PORT', '3306'),
            'charset' => 'utf8mb4',
            'collation' => 'utf8mb4_unicode_ci',
            'strict' => true,
            'engine' => null,
        ];

        return [$default, [
            'sqlite' => [
                'driver' => 'sqlite',
                'database' => $this->env('INTEROP_DB', $file ?? $app->storagePath().'/database.sqlite'),
                'prefix' => '',
                'foreign_key_constraints' => true,
                'busy_timeout' => 10000,
                // Since Laravel 12. Without it, writers in several processes fail at once.
                'transaction_mode' => $this->env('DB_TRANSACTION_MODE'),
            ],
            'mysql' => ['driver' => 'mysql'] + $mysql,
            'mariadb' => ['driver' => 'mariadb'] + $mysql,
            'pgsql' => $server + [
                'driver' => 'pgsql',
                'port' => $this->env('DB_PORT', '5432'),
                'charset' => 'utf8',
                // Laravel 8 knows it by the first name.
                'schema' => 'public',
                'search_path' => 'public',
                'sslmode' => 'prefer',
            ],
        ]];
    }

    private function items(Application $app): array
    {
        $name = $this->env('APP_NAME', 'Laravel');
        [$database, $databases] = $this->databases($app);

        // The skeletons spelled the prefixes differently over time.
        [$redisPrefix, $cachePrefix] = match (true) {
            version_compare($app->version(), '12.1', '>=') => [
                Str::slug($name).'-database-', Str::slug($name).'-cache-',
            ],
            version_compare($app->version(), '10.0', '>=') => [
                Str::slug($name, '_').'_database_', Str::slug($name, '_').'_cache_',
            ],
            default => [
                Str::slug($name, '_').'_database_', Str::slug($name, '_').'_cache',
            ],
        };

        $redis = [
            'host' => $this->env('REDIS_HOST', '127.0.0.1'),
            'password' => $this->env('REDIS_PASSWORD'),
            'port' => $this->env('REDIS_PORT', '6379'),
            'database' => $this->env('REDIS_DB', '0'),
        ];

        // Queues, cache and locks are there, and what the tests write themselves stays on the single server.
        $nodes = array_filter(explode(',', (string) $this->env('INTEROP_CLUSTER', '')));
        $nodes = array_map(fn ($node) => array_combine(['host', 'port'], explode(':', $node)), $nodes);
        $redisOfQueues = $nodes === [] ? 'default' : 'spread';

        return [
            'app' => [
                'name' => $name,
                'env' => $this->env('APP_ENV', 'local'),
                'debug' => true,
                'url' => 'http://localhost',
                'timezone' => $this->env('APP_TIMEZONE', 'UTC'),
                'locale' => 'en',
                'fallback_locale' => 'en',
                'faker_locale' => 'en_US',
                'key' => $this->env('APP_KEY', 'base64:'.base64_encode('artisand interop key, 32 bytes!!')),
                'cipher' => $this->env('APP_CIPHER', 'AES-256-CBC'),
                'previous_keys' => array_values(array_filter(explode(',', $this->env('APP_PREVIOUS_KEYS', '')))),
                'maintenance' => [
                    'driver' => $this->env('APP_MAINTENANCE_DRIVER', 'file'),
                    // Without one, Laravel uses the default store.
                    'store' => $this->env(
                        'APP_MAINTENANCE_STORE',
                        version_compare($app->version(), '11.0', '>=') ? 'database' : null
                    ),
                ],
            ],
            'auth' => ['defaults' => ['guard' => null, 'passwords' => null], 'guards' => [], 'providers' => [], 'passwords' => []],
            'broadcasting' => [
                'default' => $this->env('BROADCAST_CONNECTION', 'log'),
                'connections' => [
                    'redis' => ['driver' => 'redis', 'connection' => 'default'],
                    'log' => ['driver' => 'log'],
                    'null' => ['driver' => 'null'],
                    'seen' => ['driver' => 'seen'],
                ],
            ],
            'cache' => [
                'default' => $this->env('CACHE_STORE', $this->env('CACHE_DRIVER', 'redis')),
                'stores' => [
                    'array' => ['driver' => 'array', 'serialize' => false],
                    'database' => ['driver' => 'database', 'table' => 'cache', 'connection' => null, 'lock_connection' => null],
                    'file' => ['driver' => 'file', 'path' => $app->storagePath().'/framework/cache/data'],
                    'redis' => [
                        'driver' => 'redis',
                        'connection' => $nodes === [] ? 'cache' : 'spread',
                        'lock_connection' => $redisOfQueues,
                    ],
                ],
                'prefix' => $this->env('CACHE_PREFIX', $cachePrefix),
            ],
            'database' => [
                'default' => $database,
                'connections' => $databases,
                'migrations' => 'migrations',
                'redis' => [
                    'client' => 'phpredis',
                    'options' => [
                        'cluster' => 'redis',
                        'prefix' => getenv('REDIS_PREFIX') === false ? $redisPrefix : getenv('REDIS_PREFIX'),
                    ],
                    'default' => $redis,
                    'cache' => [
                        'port' => $this->env('REDIS_CACHE_PORT', $redis['port']),
                        'database' => $this->env('REDIS_CACHE_DB', '1'),
                    ] + $redis,
                    // Keys of the tests themselves, without a prefix for all versions.
                    'interop' => $redis + ['options' => ['prefix' => '']],
                ] + ($nodes === [] ? [] : ['clusters' => ['spread' => $nodes]]),
            ],
            'filesystems' => [
                'default' => 'local',
                'disks' => ['local' => ['driver' => 'local', 'root' => $app->storagePath()]],
            ],
            'hashing' => ['driver' => 'bcrypt', 'bcrypt' => ['rounds' => 4]],
            'logging' => [
                'default' => 'single',
                'deprecations' => null,
                'channels' => [
                    'single' => ['driver' => 'single', 'path' => $app->storagePath().'/logs/laravel.log', 'level' => 'debug'],
                    'null' => ['driver' => 'monolog', 'handler' => \Monolog\Handler\NullHandler::class],
                ],
            ],
            'mail' => [
                'default' => 'array',
                'mailers' => ['array' => ['transport' => 'array']],
                'from' => ['address' => 'hello@example.com', 'name' => 'Example'],
                'markdown' => ['theme' => 'default', 'paths' => []],
            ],
            'queue' => [
                'default' => $this->env('QUEUE_CONNECTION', 'redis'),
                'connections' => [
                    'sync' => ['driver' => 'sync'],
                    'database' => [
                        'driver' => 'database',
                        'table' => 'jobs',
                        'queue' => 'default',
                        'retry_after' => $this->number('REDIS_QUEUE_RETRY_AFTER', 90),
                        'after_commit' => false,
                    ],
                    'redis' => [
                        'driver' => 'redis',
                        'connection' => $redisOfQueues,
                        'queue' => $this->env('REDIS_QUEUE', 'default'),
                        'retry_after' => $this->number('REDIS_QUEUE_RETRY_AFTER', 90),
                        'block_for' => $this->number('REDIS_QUEUE_BLOCK_FOR', null),
                        'after_commit' => false,
                    ],
                    // On the server of cache values.
                    'elsewhere' => [
                        'driver' => 'redis',
                        'connection' => 'cache',
                        'queue' => 'far',
                        'retry_after' => $this->number('REDIS_QUEUE_RETRY_AFTER', 90),
                        'after_commit' => false,
                    ],
                ] + ($this->env('BEANSTALKD_PORT', null) === null ? [] : [
                    'beanstalkd' => [
                        'driver' => 'beanstalkd',
                        'host' => '127.0.0.1',
                        'port' => $this->number('BEANSTALKD_PORT', null),
                        'queue' => 'default',
                        'retry_after' => $this->number('REDIS_QUEUE_RETRY_AFTER', 90),
                        'block_for' => 0,
                        'after_commit' => false,
                    ],
                ]) + ($this->env('SQS_PREFIX', null) === null ? [] : [
                    'sqs' => [
                        'driver' => 'sqs',
                        'key' => 'test',
                        'secret' => 'test',
                        'region' => 'us-east-1',
                        'prefix' => $this->env('SQS_PREFIX', null),
                        'suffix' => $this->env('SQS_SUFFIX', ''),
                        'queue' => 'default',
                        'after_commit' => false,
                        'overflow' => ['enabled' => $this->env('SQS_OVERFLOW', null) !== null, 'always' => true, 'delete_after_processing' => true],
                    ],
                ]) + ($this->env('INTEROP_FAILOVER', null) === null ? [] : [
                    'failover' => [
                        'driver' => 'failover',
                        'connections' => explode(',', $this->env('INTEROP_FAILOVER', null)),
                    ],
                    'deferred' => ['driver' => 'deferred'],
                    'background' => ['driver' => 'background'],
                    'nothing' => ['driver' => 'null'],
                ]),
                'batching' => ['database' => $database, 'table' => 'job_batches'],
                'failed' => [
                    'driver' => $this->env('QUEUE_FAILED_DRIVER', 'null'),
                    'database' => $database,
                    'table' => 'failed_jobs',
                    'path' => $app->storagePath().'/failed-jobs.json',
                ],
            ],
            'services' => [],
            'view' => ['paths' => [], 'compiled' => $app->storagePath().'/framework/views'],
        ];
    }
}
