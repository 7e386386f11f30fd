<?php

namespace App;

use App\Events\ArticleRead;
use App\Events\OrderShipped;
use App\Listeners\CountReading;
use App\Listeners\SendShipmentNotification;
use Illuminate\Support\Carbon;
use Illuminate\Support\ServiceProvider;
use Illuminate\Support\Str;

class InteropServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        // The database is made when something first connects to it.
        $this->app->resolving('db', function ($db) {
            $db->extend('sqlite', function (array $config, string $name) {
                Database::prepare($config['database']);

                return $this->app['db.factory']->make($config, $name);
            });
        });
    }

    public function boot(): void
    {
        $this->app['events']->listen(OrderShipped::class, SendShipmentNotification::class);
        $this->app['events']->listen(ArticleRead::class, CountReading::class.'@count');

        if (Determinism::seeded()) {
            Str::createUuidsUsing(fn () => \Ramsey\Uuid\Uuid::fromString(Determinism::uuid()));
        }
        if ($now = getenv('INTEROP_NOW')) {
            Carbon::setTestNow(Carbon::createFromTimestamp((int) $now, 'UTC'));
        }
    }
}
