<?php

namespace App;

use Illuminate\Database\Connection;
use Illuminate\Database\Connectors\ConnectionFactory;
use Illuminate\Database\Schema\Blueprint;
use Illuminate\Database\Schema\Builder;

/**
 * The database of models, cache, failed jobs and batches. The first connection
 * creates its tables, all or none, so several
 * processes may connect at once. The framework's own tables are those of the
 * running version's migrations; ids and times of the models are fixed.
 */
final class Database
{
    /** An empty table that is created last. */
    private const COMPLETE = 'interop_complete';

    private const TIME = '2026-01-01 00:00:00';

    private const ROWS = [
        'users' => [
            ['id' => 1, 'name' => 'Ada', 'email' => 'ada@example.com'],
            ['id' => 2, 'name' => 'Grace', 'email' => 'grace@example.com'],
            ['id' => 3, 'name' => 'Żaneta', 'email' => 'zaneta@example.com'],
        ],
        'posts' => [
            ['id' => 10, 'user_id' => 1, 'title' => 'First'],
            ['id' => 11, 'user_id' => 1, 'title' => 'Second'],
        ],
        'comments' => [
            ['id' => 100, 'post_id' => 10, 'body' => 'Nice'],
        ],
        'documents' => [
            ['id' => '9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d', 'title' => 'Deed'],
        ],
    ];

    public static function connect(ConnectionFactory $factory, array $config, string $name): Connection
    {
        if ($config['driver'] === 'sqlite') {
            self::prepareFile($factory, $config);

            return $factory->make($config, $name);
        }

        // Not before the first query: the framework handles a server that
        // cannot be reached.
        $connection = $factory->make($config, $name);
        $connect = $connection->getRawPdo();

        return $connection->setPdo(static function () use ($connection, $connect) {
            $pdo = $connect();
            self::prepareServer((clone $connection)->setPdo($pdo));

            return $pdo;
        });
    }

    private static function prepareFile(ConnectionFactory $factory, array $config): void
    {
        $path = $config['database'];
        if ($path === ':memory:' || is_file($path)) {
            return;
        }

        $partial = $path.'.'.getmypid();
        file_put_contents($partial, '');
        $connection = $factory->make(['database' => $partial] + $config, 'partial');
        $connection->transaction(fn () => self::build($connection));
        $connection->disconnect();

        // link() refuses to replace a file that another process has finished.
        @link($partial, $path);
        unlink($partial);
    }

    private static function prepareServer(Connection $connection): void
    {
        if ($connection->getSchemaBuilder()->hasTable(self::COMPLETE)) {
            return;
        }
        if ($connection->getDriverName() === 'pgsql') {
            $connection->transaction(function () use ($connection) {
                $connection->select('select pg_advisory_xact_lock(1635020660)');
                self::build($connection);
            });

            return;
        }
        // Tables are not created in a transaction, so this continues unfinished work.
        $connection->select("select get_lock('interop', 60)");
        self::build($connection);
        $connection->select("select release_lock('interop')");
    }

    private static function build(Connection $connection): void
    {
        $schema = $connection->getSchemaBuilder();

        self::framework($schema, 'Queue/Console/stubs/jobs.stub', 'jobs');
        self::framework($schema, 'Queue/Console/stubs/failed_jobs.stub', 'failed_jobs');
        self::framework($schema, 'Queue/Console/stubs/batches.stub', 'job_batches');
        self::framework($schema, 'Cache/Console/stubs/cache.stub', 'cache', 'cache_locks');

        self::table($schema, 'users', function (Blueprint $table) {
            $table->increments('id');
            $table->string('name')->nullable();
            $table->string('email')->nullable();
            $table->timestamps();
        });
        self::table($schema, 'posts', function (Blueprint $table) {
            $table->increments('id');
            $table->integer('user_id')->nullable();
            $table->string('title')->nullable();
            $table->timestamps();
        });
        self::table($schema, 'comments', function (Blueprint $table) {
            $table->increments('id');
            $table->integer('post_id')->nullable();
            $table->string('body')->nullable();
            $table->timestamps();
        });
        self::table($schema, 'documents', function (Blueprint $table) {
            $table->string('id')->primary();
            $table->string('title')->nullable();
            $table->timestamps();
        });
        foreach (self::ROWS as $table => $rows) {
            foreach ($rows as $row) {
                $row += ['created_at' => self::TIME, 'updated_at' => self::TIME];
                $connection->table($table)->insertOrIgnore($row);
            }
        }

        self::table($schema, self::COMPLETE, fn (Blueprint $table) => $table->integer('id'));
    }

    private static function table(Builder $schema, string $name, callable $columns): void
    {
        if (! $schema->hasTable($name)) {
            $schema->create($name, $columns);
        }
    }

    /** Makes tables with the migration that this version's `queue:table` and the like would write. */
    private static function framework(Builder $schema, string $stub, string ...$tables): void
    {
        $missing = array_filter($tables, fn ($table) => ! $schema->hasTable($table));
        if ($missing === []) {
            return;
        }
        array_map(fn ($table) => $schema->dropIfExists($table), $tables);

        $file = (new \ReflectionClass(\Illuminate\Foundation\Application::class))->getFileName();
        $code = file_get_contents(dirname($file, 2).'/'.$stub);
        if (! preg_match('/function up\(\)[^{]*\{(.*?)\n    \}/s', $code, $up)) {
            throw new \RuntimeException("no migration in $stub");
        }
        $code = strtr($up[1], ['Schema::' => '$schema->', '{{table}}' => $tables[0]]);
        if (config('queue.failed.driver') === 'database') {
            // That provider is for old tables without a uuid.
            $code = preg_replace('/^.*\'uuid\'.*\n/m', '', $code);
        }

        eval('use '.Blueprint::class.'; '.$code);
    }
}
