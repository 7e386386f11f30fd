<?php

/**
 * Configuration and environment that each generation of Laravel's skeleton gives
 * to a new app. An app keeps them when its framework is upgraded.
 *
 * Configuration is nested arrays whose leaves are PHP code, so that variants can
 * change single entries before the files are written.
 */

namespace Artisand\Interop\Apps;

final class Skeleton
{
    public function __construct(public readonly string $version, public readonly string $framework)
    {
    }

    public function from(string $version): bool
    {
        return version_compare($this->version, $version, '>=');
    }

    /** True for apps without kernels and provider lists (`Application::configure`). */
    public function isSlim(): bool
    {
        return $this->from('11') && version_compare($this->framework, '11', '>=');
    }

    /** @return array<string, array> file name below config/ => entries */
    public function config(): array
    {
        return array_filter([
            'app' => $this->app(),
            'queue' => $this->queue(),
            'cache' => $this->cache(),
            'database' => $this->database(),
            'filesystems' => [
                'default' => "'local'",
                'disks' => ['local' => ['driver' => "'local'", 'root' => "storage_path('app')"]],
            ],
            'logging' => [
                'default' => "env('LOG_CHANNEL', 'stack')",
                'deprecations' => $this->from('9') ? ['channel' => "'single'", 'trace' => 'false'] : null,
                'channels' => [
                    'stack' => ['driver' => "'stack'", 'channels' => "['single']"],
                    'single' => ['driver' => "'single'", 'path' => "storage_path('logs/laravel.log')"],
                ],
            ],
            'services' => ['mailgun' => ['secret' => "env('MAILGUN_SECRET')"]],
            'session' => ['driver' => "env('SESSION_DRIVER', 'file')", 'files' => "storage_path('framework/sessions')"],
            'view' => ['paths' => "[resource_path('views')]", 'compiled' => "storage_path('framework/views')"],
        ]);
    }

    private function app(): array
    {
        return [
            'name' => "env('APP_NAME', 'Laravel')",
            'env' => "env('APP_ENV', 'production')",
            'debug' => "(bool) env('APP_DEBUG', false)",
            'url' => "env('APP_URL', 'http://localhost')",
            'timezone' => $this->from('11') && ! $this->from('11.7') ? "env('APP_TIMEZONE', 'UTC')" : "'UTC'",
            'locale' => "'en'",
            'fallback_locale' => "'en'",
            'key' => "env('APP_KEY')",
            'cipher' => "'AES-256-CBC'",
            'previous_keys' => match (true) {
                ! $this->from('11') => null,
                default => "[\n        ...array_filter(explode(',', (string) env('APP_PREVIOUS_KEYS', ''))),\n    ]",
            },
            'maintenance' => match (true) {
                $this->from('11') => [
                    'driver' => "env('APP_MAINTENANCE_DRIVER', 'file')",
                    'store' => "env('APP_MAINTENANCE_STORE', 'database')",
                ],
                $this->from('9') => ['driver' => "'file'"],
                default => null,
            },
            'providers' => $this->providers(),
            'aliases' => $this->isSlim() ? null : [
                'App' => 'Illuminate\Support\Facades\App::class',
                'Cache' => 'Illuminate\Support\Facades\Cache::class',
                'Queue' => 'Illuminate\Support\Facades\Queue::class',
            ],
        ];
    }

    private function providers(): array|string|null
    {
        if ($this->isSlim()) {
            return null;
        }
        if ($this->from('10') && version_compare($this->framework, '10', '>=')) {
            return "Illuminate\Support\ServiceProvider::defaultProviders()->merge([\n"
                ."        App\Providers\AppServiceProvider::class,\n"
                ."        App\Providers\EventServiceProvider::class,\n    ])->toArray()";
        }

        $framework = [
            'Auth\Auth', 'Broadcasting\Broadcast', 'Bus\Bus', 'Cache\Cache',
            'Foundation\Providers\ConsoleSupport', 'Cookie\Cookie', 'Database\Database', 'Encryption\Encryption',
            'Filesystem\Filesystem', 'Foundation\Providers\Foundation', 'Hashing\Hash', 'Mail\Mail',
            'Notifications\Notification', 'Pagination\Pagination', 'Pipeline\Pipeline', 'Queue\Queue',
            'Redis\Redis', 'Auth\Passwords\PasswordReset', 'Session\Session', 'Translation\Translation',
            'Validation\Validation', 'View\View',
        ];

        return [
            ...array_map(fn ($name) => "Illuminate\\{$name}ServiceProvider::class", $framework),
            'App\Providers\AppServiceProvider::class',
            'App\Providers\EventServiceProvider::class',
        ];
    }

    private function queue(): array
    {
        $slim = $this->from('11');
        $afterCommit = $this->from('8.5.13') ? 'false' : null;
        $database = $slim ? 'sqlite' : 'mysql';

        return [
            'default' => "env('QUEUE_CONNECTION', '".($slim ? 'database' : 'sync')."')",
            'connections' => [
                'sync' => ['driver' => "'sync'"],
                'database' => [
                    'driver' => "'database'",
                    'connection' => $slim ? "env('DB_QUEUE_CONNECTION')" : null,
                    'table' => $slim ? "env('DB_QUEUE_TABLE', 'jobs')" : "'jobs'",
                    'queue' => $slim ? "env('DB_QUEUE', 'default')" : "'default'",
                    'retry_after' => match (true) {
                        $this->from('11.0.4') => "(int) env('DB_QUEUE_RETRY_AFTER', 90)",
                        $slim => "env('DB_QUEUE_RETRY_AFTER', 90)",
                        default => '90',
                    },
                    'after_commit' => $afterCommit,
                ],
                'beanstalkd' => [
                    'driver' => "'beanstalkd'",
                    'host' => $slim ? "env('BEANSTALKD_QUEUE_HOST', 'localhost')" : "'localhost'",
                    'queue' => "'default'",
                    'retry_after' => '90',
                    'block_for' => '0',
                    'after_commit' => $afterCommit,
                ],
                'sqs' => [
                    'driver' => "'sqs'",
                    'key' => "env('AWS_ACCESS_KEY_ID')",
                    'secret' => "env('AWS_SECRET_ACCESS_KEY')",
                    'prefix' => "env('SQS_PREFIX', 'https://sqs.us-east-1.amazonaws.com/your-account-id')",
                    'queue' => "env('SQS_QUEUE', '".($slim ? 'default' : 'your-queue-name')."')",
                    'suffix' => $this->from('8') ? "env('SQS_SUFFIX')" : null,
                    'region' => "env('AWS_DEFAULT_REGION', 'us-east-1')",
                    'after_commit' => $afterCommit,
                ],
                'redis' => [
                    'driver' => "'redis'",
                    'connection' => $slim ? "env('REDIS_QUEUE_CONNECTION', 'default')" : "'default'",
                    'queue' => "env('REDIS_QUEUE', 'default')",
                    'retry_after' => match (true) {
                        $this->from('11.0.4') => "(int) env('REDIS_QUEUE_RETRY_AFTER', 90)",
                        $slim => "env('REDIS_QUEUE_RETRY_AFTER', 90)",
                        default => '90',
                    },
                    'block_for' => 'null',
                    'after_commit' => $afterCommit,
                ],
                'deferred' => $this->from('12.8') ? ['driver' => "'deferred'"] : null,
                'failover' => $this->from('12.8')
                    ? ['driver' => "'failover'", 'connections' => "['database', 'deferred']"]
                    : null,
            ],
            'batching' => $this->from('10.0.6')
                ? ['database' => "env('DB_CONNECTION', '{$database}')", 'table' => "'job_batches'"]
                : null,
            'failed' => [
                'driver' => match (true) {
                    $this->from('8') => "env('QUEUE_FAILED_DRIVER', 'database-uuids')",
                    $this->from('6') => "env('QUEUE_FAILED_DRIVER', 'database')",
                    default => null,
                },
                'database' => "env('DB_CONNECTION', '{$database}')",
                'table' => "'failed_jobs'",
            ],
        ];
    }

    private function cache(): array
    {
        $slim = $this->from('11');

        return [
            'default' => $slim ? "env('CACHE_STORE', 'database')" : "env('CACHE_DRIVER', 'file')",
            'stores' => [
                'apc' => $this->from('11') ? null : ['driver' => "'apc'"],
                'array' => ['driver' => "'array'", 'serialize' => $this->from('8') ? 'false' : null],
                'database' => [
                    'driver' => "'database'",
                    'connection' => $slim ? "env('DB_CACHE_CONNECTION')" : 'null',
                    'table' => $slim ? "env('DB_CACHE_TABLE', 'cache')" : "'cache'",
                    'lock_connection' => match (true) {
                        $slim => "env('DB_CACHE_LOCK_CONNECTION')",
                        $this->from('8.5.6') => 'null',
                        default => null,
                    },
                    'lock_table' => $this->from('11.1.2') ? "env('DB_CACHE_LOCK_TABLE')" : null,
                ],
                'file' => [
                    'driver' => "'file'",
                    'path' => "storage_path('framework/cache/data')",
                    'lock_path' => $this->from('10.2.2') ? "storage_path('framework/cache/data')" : null,
                ],
                'memcached' => [
                    'driver' => "'memcached'",
                    'persistent_id' => "env('MEMCACHED_PERSISTENT_ID')",
                    'sasl' => ["env('MEMCACHED_USERNAME')", "env('MEMCACHED_PASSWORD')"],
                    'options' => '[]',
                    'servers' => [[
                        'host' => "env('MEMCACHED_HOST', '127.0.0.1')",
                        'port' => "env('MEMCACHED_PORT', 11211)",
                        'weight' => '100',
                    ]],
                ],
                'redis' => [
                    'driver' => "'redis'",
                    'connection' => $slim ? "env('REDIS_CACHE_CONNECTION', 'cache')" : "'cache'",
                    'lock_connection' => match (true) {
                        $slim => "env('REDIS_CACHE_LOCK_CONNECTION', 'default')",
                        $this->from('8.5.6') => "'default'",
                        default => null,
                    },
                ],
                'dynamodb' => [
                    'driver' => "'dynamodb'",
                    'key' => "env('AWS_ACCESS_KEY_ID')",
                    'secret' => "env('AWS_SECRET_ACCESS_KEY')",
                    'region' => "env('AWS_DEFAULT_REGION', 'us-east-1')",
                    'table' => "env('DYNAMODB_CACHE_TABLE', 'cache')",
                    'endpoint' => "env('DYNAMODB_ENDPOINT')",
                ],
                'failover' => $this->from('12.8')
                    ? ['driver' => "'failover'", 'stores' => "['database', 'array']"]
                    : null,
            ],
            'prefix' => match (true) {
                $this->from('12.1') => "env('CACHE_PREFIX', Str::slug((string) env('APP_NAME', 'laravel')).'-cache-')",
                $this->from('9.0.1') => "env('CACHE_PREFIX', Str::slug(env('APP_NAME', 'laravel'), '_').'_cache_')",
                default => "env('CACHE_PREFIX', Str::slug(env('APP_NAME', 'laravel'), '_').'_cache')",
            },
            'serializable_classes' => $this->from('13') ? 'false' : null,
        ];
    }

    private function database(): array
    {
        $slim = $this->from('11');
        $url = $slim ? "env('DB_URL')" : "env('DATABASE_URL')";
        $user = $slim ? 'root' : 'forge';
        $name = $slim ? 'laravel' : 'forge';
        $mysql = [
            'driver' => "'mysql'",
            'url' => $url,
            'host' => "env('DB_HOST', '127.0.0.1')",
            'port' => "env('DB_PORT', '3306')",
            'database' => "env('DB_DATABASE', '{$name}')",
            'username' => "env('DB_USERNAME', '{$user}')",
            'password' => "env('DB_PASSWORD', '')",
            'unix_socket' => "env('DB_SOCKET', '')",
            'charset' => $slim ? "env('DB_CHARSET', 'utf8mb4')" : "'utf8mb4'",
            'collation' => $slim ? "env('DB_COLLATION', 'utf8mb4_unicode_ci')" : "'utf8mb4_unicode_ci'",
            'prefix' => "''",
            'prefix_indexes' => 'true',
            'strict' => 'true',
            'engine' => 'null',
            'options' => "extension_loaded('pdo_mysql') ? array_filter([\n            ".($this->from('12.10')
                ? '(PHP_VERSION_ID >= 80500 ? \Pdo\Mysql::ATTR_SSL_CA : \PDO::MYSQL_ATTR_SSL_CA)'
                : 'PDO::MYSQL_ATTR_SSL_CA')." => env('MYSQL_ATTR_SSL_CA'),\n        ]) : []",
        ];

        return [
            'default' => $slim ? "env('DB_CONNECTION', 'sqlite')" : "env('DB_CONNECTION', 'mysql')",
            'connections' => [
                'sqlite' => [
                    'driver' => "'sqlite'",
                    'url' => $url,
                    'database' => "env('DB_DATABASE', database_path('database.sqlite'))",
                    'prefix' => "''",
                    'foreign_key_constraints' => "env('DB_FOREIGN_KEYS', true)",
                    'busy_timeout' => $this->from('11.5') ? 'null' : null,
                    'journal_mode' => $this->from('11.5') ? 'null' : null,
                    'synchronous' => $this->from('11.5') ? 'null' : null,
                    'transaction_mode' => $this->from('12.4') ? "'DEFERRED'" : null,
                ],
                'mysql' => $mysql,
                'mariadb' => $slim ? ['driver' => "'mariadb'"] + $mysql : null,
                'pgsql' => [
                    'driver' => "'pgsql'",
                    'url' => $url,
                    'host' => "env('DB_HOST', '127.0.0.1')",
                    'port' => "env('DB_PORT', '5432')",
                    'database' => "env('DB_DATABASE', '{$name}')",
                    'username' => "env('DB_USERNAME', '{$user}')",
                    'password' => "env('DB_PASSWORD', '')",
                    'charset' => $slim ? "env('DB_CHARSET', 'utf8')" : "'utf8'",
                    'prefix' => "''",
                    'prefix_indexes' => 'true',
                    ($this->from('9') ? 'search_path' : 'schema') => "'public'",
                    'sslmode' => $this->from('12.11') ? "env('DB_SSLMODE', 'prefer')" : "'prefer'",
                ],
            ],
            'migrations' => $slim ? ['table' => "'migrations'", 'update_date_on_publish' => 'true'] : "'migrations'",
            'redis' => [
                'client' => $this->from('6') ? "env('REDIS_CLIENT', 'phpredis')" : "env('REDIS_CLIENT', 'predis')",
                'options' => [
                    'cluster' => $this->from('6') ? "env('REDIS_CLUSTER', 'redis')" : "env('REDIS_CLUSTER', 'predis')",
                    'prefix' => match (true) {
                        $this->from('12.1') =>
                            "env('REDIS_PREFIX', Str::slug((string) env('APP_NAME', 'laravel')).'-database-')",
                        $this->from('5.8.35') =>
                            "env('REDIS_PREFIX', Str::slug(env('APP_NAME', 'laravel'), '_').'_database_')",
                        default => "Str::slug(env('APP_NAME', 'laravel'), '_').'_database_'",
                    },
                    'persistent' => $this->from('12') ? "env('REDIS_PERSISTENT', false)" : null,
                ],
                'default' => $this->redis("env('REDIS_DB', '0')"),
                'cache' => $this->redis("env('REDIS_CACHE_DB', '1')"),
            ],
        ];
    }

    private function redis(string $database): array
    {
        $retries = $this->from('12.4');

        return [
            'url' => "env('REDIS_URL')",
            'host' => "env('REDIS_HOST', '127.0.0.1')",
            'username' => $this->from('9.1.3') ? "env('REDIS_USERNAME')" : null,
            'password' => "env('REDIS_PASSWORD', null)",
            'port' => "env('REDIS_PORT', '6379')",
            'database' => $database,
            'max_retries' => $retries ? "env('REDIS_MAX_RETRIES', 3)" : null,
            'backoff_algorithm' => $retries ? "env('REDIS_BACKOFF_ALGORITHM', 'decorrelated_jitter')" : null,
            'backoff_base' => $retries ? "env('REDIS_BACKOFF_BASE', 100)" : null,
            'backoff_cap' => $retries ? "env('REDIS_BACKOFF_CAP', 1000)" : null,
        ];
    }

    /**
     * Lines of .env by name. Every secret has `s3cr3t` in it, so that a test can
     * see where one appears.
     *
     * @return array<string, string>
     */
    public function env(): array
    {
        $slim = $this->from('11');

        return array_filter([
            'APP_NAME' => 'Laravel',
            'APP_ENV' => 'local',
            'APP_KEY' => 'base64:s3cr3t/KeyOfTheTestApps+NotForAnyoneElseABA=',
            'APP_DEBUG' => 'true',
            'APP_TIMEZONE' => $slim && ! $this->from('11.7') ? 'UTC' : null,
            'APP_URL' => 'http://localhost',
            'LOG_CHANNEL' => 'stack',
            'DB_CONNECTION' => $slim ? 'sqlite' : 'mysql',
            'DB_HOST' => $slim ? null : '127.0.0.1',
            'DB_PORT' => $slim ? null : '3306',
            'DB_DATABASE' => $slim ? null : 'laravel',
            'DB_USERNAME' => $slim ? null : 'root',
            'DB_PASSWORD' => $slim ? null : 's3cr3t-db',
            'QUEUE_CONNECTION' => 'redis',
            $slim ? 'CACHE_STORE' : 'CACHE_DRIVER' => 'redis',
            'CACHE_PREFIX' => $slim && ! $this->from('12') ? '' : null,
            'REDIS_CLIENT' => $this->from('6') && ! $slim ? null : 'phpredis',
            'REDIS_HOST' => '127.0.0.1',
            'REDIS_PASSWORD' => 'null',
            'REDIS_PORT' => '6379',
            'AWS_ACCESS_KEY_ID' => '',
            'AWS_SECRET_ACCESS_KEY' => '',
        ], fn ($value) => $value !== null);
    }

    /** PHP code of one configuration file. */
    public static function render(array $entries): string
    {
        $body = self::lines($entries, 1);
        $use = str_contains($body, 'Str::') ? "use Illuminate\Support\Str;\n\n" : '';

        return "<?php\n\n{$use}return [\n{$body}];\n";
    }

    private static function lines(array $entries, int $depth): string
    {
        $indent = str_repeat('    ', $depth);
        $text = '';
        foreach ($entries as $key => $value) {
            if ($value === null) {
                continue;
            }
            $name = is_int($key) ? '' : "'{$key}' => ";
            $text .= is_array($value)
                ? "{$indent}{$name}[\n".self::lines($value, $depth + 1)."{$indent}],\n"
                : "{$indent}{$name}{$value},\n";
        }

        return $text;
    }
}
