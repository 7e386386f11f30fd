<?php

/**
 * The test apps: name => how it differs from its skeleton.
 *
 *   skeleton   the generation its configuration comes from
 *   env        lines of .env, raw; null removes one
 *   config     dotted path => PHP code, null to remove it
 *   files      path => contents
 *   installed  how the framework's version can be read: `packages` (Composer 2),
 *              `list` (Composer 1), `lock` (composer.lock only)
 *   without    paths left out
 *   cached     lines of .env as they were when the configuration was cached
 */

namespace Artisand\Interop\Apps;

return function (string $framework): array {
    $job = fn (string $name, string $code) => "<?php\n\nnamespace App\Jobs;\n\n{$code}\n";
    $slimOnly = version_compare($framework, '11', '>=');

    return [
        'skeleton-5.8' => ['skeleton' => '5.8.35', 'installed' => 'list'],
        'skeleton-6' => ['skeleton' => '6.20', 'installed' => 'lock'],
        'skeleton-8' => ['skeleton' => '8.6.12', 'env' => ['REDIS_PASSWORD' => 's3cr3t-redis']],
        'skeleton-9' => ['skeleton' => '9.5.2'],
        'skeleton-10' => ['skeleton' => '10.3.3', 'env' => ['AWS_SECRET_ACCESS_KEY' => 's3cr3t-aws']],
        // Most apps of this generation have no files for settings that they do not change.
        'skeleton-11' => [
            'skeleton' => '11.0.3',
            'without' => $slimOnly ? ['config/queue.php'] : [],
            'env' => ['APP_PREVIOUS_KEYS' => 'base64:s3cr3t/previous=,,s3cr3t-raw-key'],
        ],
        'skeleton-12.1' => ['skeleton' => '12.1.0', 'env' => ['APP_NAME' => '"My_App: two"']],
        'skeleton-13' => ['skeleton' => '13.0.0', 'env' => ['REDIS_USERNAME' => 'worker', 'REDIS_PASSWORD' => 's3cr3t-acl']],

        'redis-url' => [
            'skeleton' => '10.3.3',
            'env' => [
                'REDIS_URL' => 'rediss://work%40er:s3cr3t%40ss%3Aw0rd%2F%23@redis.internal:6380/3',
                'REDIS_CACHE_URL' => '"tcp://cache.internal?database=5&timeout=2.5&prefix=url_"',
                'REDIS_NUMERIC_URL' => 'redis://app:7331733173317331@numbers.internal',
            ],
            'config' => [
                'database.redis.cache.url' => "env('REDIS_CACHE_URL')",
                'database.redis.numeric' => ['url' => "env('REDIS_NUMERIC_URL')", 'host' => "'ignored'", 'port' => '6390'],
                'database.redis.text' => "'redis://:s3cr3t-text@text.internal:6391/7'",
                'database.redis.path' => ['url' => "'redis://path.internal/'", 'database' => '9', 'username' => 'null'],
            ],
        ],
        'clusters' => [
            'skeleton' => '10.3.3',
            'env' => ['REDIS_PASSWORD' => 's3cr3t-cluster', 'REDIS_QUEUE' => '"{default}"'],
            'config' => [
                'database.redis.default' => null,
                'database.redis.clusters' => [
                    'default' => [
                        ['host' => "env('REDIS_HOST', '127.0.0.1')", 'password' => "env('REDIS_PASSWORD')",
                            'port' => '7000', 'database' => '0'],
                        ['url' => "'tcp://node-2.internal:7001'"],
                    ],
                    'options' => ['cluster' => "'redis'", 'prefix' => "'cluster_'", 'timeout' => '1.5'],
                ],
            ],
        ],
        'odd-name-latin' => ['skeleton' => '10.3.3', 'env' => ['APP_NAME' => '"Żółć & Søns – Café №5 @ home_base"']],
        'odd-name-cyrillic' => ['skeleton' => '9.5.2', 'env' => ['APP_NAME' => '"Ёлки Юлия Яъ"'], 'installed' => 'lock'],
        'odd-name-cjk' => ['skeleton' => '12.1.0', 'env' => ['APP_NAME' => '日本語']],
        'odd-name-symbols' => ['skeleton' => '8.6.12', 'env' => ['APP_NAME' => "'my-app™ -- v2.0 \$5 #1'"]],
        'cached-config' => [
            'skeleton' => '10.3.3',
            'cached' => ['APP_NAME' => '"Cached App"', 'REDIS_PASSWORD' => 's3cr3t-cached', 'REDIS_PORT' => '6400'],
            'env' => ['APP_NAME' => 'Edited', 'REDIS_PASSWORD' => 's3cr3t-edited', 'REDIS_PORT' => '6500',
                'CACHE_PREFIX' => 'edited'],
        ],
        'connection-options' => [
            'skeleton' => '10.3.3',
            'env' => ['REDIS_PREFIX' => 'global:'],
            'config' => [
                'database.redis.queue' => [
                    'host' => "env('REDIS_HOST', '127.0.0.1')",
                    'port' => "env('REDIS_PORT', 6379)",
                    'database' => '2',
                    'prefix' => "'own:'",
                ],
                'database.redis.nested' => [
                    'host' => "env('REDIS_HOST', '127.0.0.1')",
                    'port' => "env('REDIS_PORT', 6379)",
                    'prefix' => "'own:'",
                    'options' => ['prefix' => "'nested:'"],
                ],
                'database.redis.unprefixed' => [
                    'host' => "env('REDIS_HOST', '127.0.0.1')",
                    'port' => "env('REDIS_PORT', 6379)",
                    'options' => ['prefix' => "''", 'serializer' => '1'],
                ],
                'database.redis.packed' => [
                    'host' => "env('REDIS_HOST', '127.0.0.1')",
                    'port' => "env('REDIS_PORT', 6379)",
                    'timeout' => '2.0',
                    'read_timeout' => '60',
                    'name' => "'worker'",
                    'options' => ['serializer' => '2'],
                ],
                'queue.connections.redis.connection' => "'queue'",
                'cache.stores.second' => [
                    'driver' => "'redis'", 'connection' => "'nested'", 'prefix' => "'second_store'",
                ],
                'cache.limiter' => "'second'",
                'queue.connections.redis.block_for' => '5',
                'queue.connections.slow' => ['driver' => "'redis'", 'connection' => "'unprefixed'", 'queue' => "'slow'"],
            ],
        ],
        'tls-socket' => [
            'skeleton' => '9.5.2',
            'installed' => 'lock',
            'env' => ['REDIS_PASSWORD' => 's3cr3t-tls', 'REDIS_HOST' => 'tls://redis.internal'],
            'config' => [
                'database.redis.default.context' => [
                    'stream' => ['verify_peer' => 'true', 'cafile' => "'/etc/ssl/redis-ca.pem'"],
                ],
                'database.redis.cache.host' => "'redis.internal'",
                'database.redis.cache.scheme' => "'tls'",
                'database.redis.socket' => [
                    'host' => "'/run/redis/redis.sock'", 'port' => '0', 'password' => "env('REDIS_PASSWORD')",
                ],
                'database.redis.predis' => ['scheme' => "'unix'", 'path' => "'/run/redis/redis.sock'"],
            ],
        ],
        // The real environment may say APP_ENV=staging; then only the other file counts.
        'env-tricks' => [
            'skeleton' => '8.6.12',
            'env' => [
                '# A comment, then an indented line and an export' => null,
                'APP_NAME' => '"Tricky ${BRAND} \"App\"" # not part of it',
                '  CACHE_PREFIX ' => ' spaced_out   # nor this',
                'export REDIS_PREFIX' => "'single \${BRAND} quoted:'",
                'REDIS_PASSWORD' => 's3cr3t#truncated',
                'DB_PASSWORD' => '"s3cr3t \"quoted\" #\$BRAND"',
                'DB_DATABASE' => '${BRAND}_${UNKNOWN}_$BRAND',
                'REDIS_QUEUE' => '"(null)"',
                'QUEUE_FAILED_DRIVER' => 'Null',
                'REDIS_DB' => '4 ',
                'REDIS_PORT' => '1111',
                'AWS_DEFAULT_REGION' => "\"first\nsecond\"",
                'CLEARED' => null,
            ],
            'first' => ['BRAND' => 'Acme'],
            'last' => ['REDIS_PORT=6379', 'CLEARED', '# REDIS_PORT=2222'],
            'files' => [
                '.env.staging' => "APP_NAME=Staging\nAPP_KEY=s3cr3t-key-of-staging-32-bytes!!\nREDIS_CLIENT=phpredis\n"
                    ."REDIS_PREFIX=\nCACHE_PREFIX=null\nQUEUE_CONNECTION=redis\nCACHE_DRIVER=redis\n",
            ],
        ],
        'no-prefix' => [
            'skeleton' => '12.1.0',
            'env' => ['REDIS_PREFIX' => '', 'CACHE_PREFIX' => 'null', 'APP_NAME' => 'null'],
        ],
        'failed-null' => ['skeleton' => '8.6.12', 'env' => ['QUEUE_FAILED_DRIVER' => 'null']],
        'failed-file' => [
            'skeleton' => '10.3.3',
            'env' => ['QUEUE_FAILED_DRIVER' => 'file'],
            'config' => [
                'queue.failed.path' => "storage_path('app/failed.json')",
                'queue.failed.limit' => '250',
                'queue.failed.database' => null,
            ],
        ],
        'database-urls' => [
            'skeleton' => '10.3.3',
            'env' => [
                'DATABASE_URL' => 'mysql2://shop:s3cr3t%21db@db.internal:3307/shop?charset=latin1&strict=false',
                'PG_URL' => '"postgres://pg:s3cr3t-pg@pg.internal/reports?sslmode=require"',
            ],
            'config' => [
                'database.connections.pgsql.url' => "env('PG_URL')",
                'database.connections.sqlite.url' => "'sqlite:///relative.sqlite'",
                'database.connections.mysql.prefix' => "'shop_'",
                'database.connections.split' => [
                    'driver' => "'mysql'",
                    'read' => ['host' => "['10.0.0.1', '10.0.0.2']"],
                    'write' => ['host' => "['10.0.0.9']", 'password' => "'s3cr3t-write'"],
                    'sticky' => 'true',
                    'database' => "'split'",
                    'username' => "'splitter'",
                    'password' => "env('DB_PASSWORD')",
                    'prefix' => "''",
                ],
                'queue.connections.database.connection' => "'pgsql'",
                'queue.failed.database' => "'split'",
                'queue.batching.database' => "'pgsql'",
            ],
        ],
        'maintenance-cache' => [
            'skeleton' => '11.0.3',
            'env' => ['APP_MAINTENANCE_DRIVER' => 'cache', 'APP_MAINTENANCE_STORE' => 'redis', 'CACHE_PREFIX' => 'maint',
                'APP_TIMEZONE' => 'Europe/Warsaw'],
        ],
        // Literal secrets instead of variables, and values without a form in JSON.
        'odd-values' => [
            'skeleton' => '8.6.12',
            'config' => [
                'app.key' => "'s3cr3t key of exactly 32 bytes!!'",
                'database.redis.default.password' => "'s3cr3t-literal'",
                'database.redis.options.parameters' => ['password' => "'s3cr3t-parameter'"],
                'database.redis.sentinel' => [
                    "'tcp://10.0.0.1:26379?password=s3cr3t-sentinel'",
                    "'tcp://10.0.0.2:26379'",
                    'options' => ['replication' => "'sentinel'", 'service' => "'mymaster'"],
                ],
                'database.connections.odbc' => [
                    'driver' => "'sqlsrv'", 'odbc_datasource_name' => "'Driver=x;UID=me;PWD=s3cr3t-odbc'",
                ],
                'queue.connections.custom' => [
                    'driver' => "'custom'",
                    'resolver' => 'function () { return null; }',
                    'object' => 'new ArrayObject([1])',
                    'bytes' => '"\xff\xfe raw"',
                    'stream' => "fopen('php://memory', 'r')",
                    'priority' => 'App\Enums\Priority::High',
                    'huge' => 'INF',
                    'timeout' => '0.0',
                    'api_token' => "'s3cr3t-token'",
                ],
                'cache.stores.dynamodb.attributes' => ['key' => "'key_column'", 'value' => "'value'"],
                'cache.stores.sessions' => ['driver' => "'session'", 'key' => "'_cache'"],
            ],
        ],
        // Prints while it boots, and has files that PHP cannot load.
        'broken-classes' => [
            'skeleton' => '8.6.12',
            'files' => [
                'app/Jobs/Unparsable.php' => $job('', 'class Unparsable implements { $$$ }'),
                'app/Jobs/Orphan.php' => $job('', 'class Orphan extends \Acme\MissingJob {}'),
                'app/Jobs/Incompatible.php' => $job('', "class Incompatible extends Plain\n{\n"
                    ."    public function handle()\n    {\n    }\n}"),
                'app/Jobs/Twice.php' => $job('', "class Twice extends Plain\n{\n}\n\nclass Plain extends \Exception\n{\n}"),
                'app/Jobs/Wrong/Place.php' => $job('', "class Place extends Plain\n{\n}"),
                'app/Jobs/Leaving.php' => $job('', "exit(3);\n\nclass Leaving extends Plain\n{\n}"),
                'app/Jobs/Unready.php' => $job('', "class Unready extends Plain\n{\n    public \$limit = self::MISSING;\n}"),
                'app/Jobs/Zebra.php' => $job('', "class Zebra extends Plain\n{\n}"),
                'app/helpers.php' => "<?php\n\necho 'helpers ran';\n",
                'bootstrap/noise.php' => "<?php\n\necho \"noise on standard output\\n\";\n"
                    ."fwrite(STDOUT, \"more noise\\n\");\ntrigger_error('a deprecation', E_USER_DEPRECATED);\n",
            ],
            'prepend' => ['app/Providers/AppServiceProvider.php' => "require base_path('bootstrap/noise.php');"],
        ],
    ];
};
