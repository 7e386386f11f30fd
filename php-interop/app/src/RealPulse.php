<?php

namespace App;

use Illuminate\Contracts\Foundation\Application;
use Illuminate\Support\Facades\Schema;

/** Laravel Pulse from a checkout that `PULSE_SOURCE` names: its recorders of jobs and exceptions. */
final class RealPulse
{
    private const PREFIX = 'Laravel\\Pulse\\';

    /** Milliseconds from which a job is slow. */
    private const SLOW = 2000;

    public static function register(Application $app, string $source): void
    {
        spl_autoload_register(function (string $class) use ($source) {
            $file = $source.'/src/'.strtr(substr($class, strlen(self::PREFIX)), '\\', '/').'.php';
            if (str_starts_with($class, self::PREFIX) && is_file($file)) {
                require $file;
            }
        });
        $pulse = require $source.'/config/pulse.php';
        $classes = array_map(fn ($name) => self::PREFIX.'Recorders\\'.$name, ['Queues', 'SlowJobs', 'Exceptions']);
        $pulse['recorders'] = array_intersect_key($pulse['recorders'], array_flip($classes));
        $pulse['recorders'][$classes[1]]['threshold'] = self::SLOW;
        $pulse['ingest']['trim']['lottery'] = [0, 1];
        $app['config']->set('pulse', $pulse);
        $app->register(self::PREFIX.'PulseServiceProvider');
    }

    public static function migrate(string $source): void
    {
        if (! Schema::hasTable('pulse_entries')) {
            (require $source.'/database/migrations/2023_06_07_000001_create_pulse_tables.php')->up();
        }
    }
}
