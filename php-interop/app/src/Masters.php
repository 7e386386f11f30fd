<?php

namespace App;

use Closure;

/** Stands for Horizon's `MasterSupervisor` where an app names its masters itself. */
final class Masters
{
    public static $nameResolver;

    public static function determineNameUsing(Closure $callback): void
    {
        self::$nameResolver = $callback;
    }
}
