<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Cache;

class Config extends Command
{
    protected $signature = 'interop:config';

    protected $description = 'Print the settings that matter to others, as JSON';

    public function handle(): int
    {
        $root = (string) getenv('INTEROP_ROOT');
        $store = config('cache.default') === 'redis' ? Cache::store('redis')->getStore() : null;

        $this->output->writeln(Document::json([
            'version' => $this->laravel->version(),
            'php' => PHP_VERSION,
            'redis' => [
                'extension' => phpversion('redis'),
                'host' => config('database.redis.default.host'),
                'port' => (int) config('database.redis.default.port'),
                'database' => (int) config('database.redis.default.database'),
                'cache_database' => (int) config('database.redis.cache.database'),
                'prefix' => config('database.redis.options.prefix'),
            ],
            'cache' => [
                'store' => config('cache.default'),
                'prefix' => config('cache.prefix'),
                // With the colon that Laravel 10 and older put after it.
                'effective_prefix' => $store?->getPrefix(),
            ],
            'queue' => config('queue.connections.redis') + ['default' => config('queue.default')],
            'failed' => ['driver' => config('queue.failed.driver'), 'database' => config('queue.failed.database')],
            'maintenance' => config('app.maintenance'),
            'app' => [
                'name' => config('app.name'),
                'key' => config('app.key'),
                'cipher' => config('app.cipher'),
                'timezone' => config('app.timezone'),
            ],
            // The sections that workers need.
            'config' => array_map(
                fn ($section) => self::mapped($section, $this->laravel->storagePath(), $root),
                array_intersect_key(config()->all(), array_flip(['app', 'queue', 'cache', 'database']))
            ),
            // As this machine sees them, also when the app lives in a root.
            'app_path' => $root.base_path(),
            'storage' => $root.storage_path(),
            'database' => $root.config('database.connections.sqlite.database'),
        ]));

        return 0;
    }

    /** The same with paths in the storage directory as this machine sees them. */
    private static function mapped(mixed $value, string $storage, string $root): mixed
    {
        if (is_array($value)) {
            return array_map(fn ($item) => self::mapped($item, $storage, $root), $value);
        }

        return is_string($value) && str_starts_with($value, $storage.'/') ? $root.$value : $value;
    }
}
