<?php

namespace App;

use Illuminate\Foundation\Bootstrap\BootProviders;
use Illuminate\Foundation\Bootstrap\HandleExceptions;
use Illuminate\Foundation\Bootstrap\SetRequestForConsole;
use Illuminate\Foundation\Console\Kernel as ConsoleKernel;

/** The framework's console kernel with this app's configuration and commands. */
class Kernel extends ConsoleKernel
{
    protected $commands = [
        Console\Batch::class,
        Console\BatchRecord::class,
        Console\BatchState::class,
        Console\Cache::class,
        Console\Chain::class,
        Console\Chains::class,
        Console\Config::class,
        Console\Crypt::class,
        Console\Describe::class,
        Console\Dispatch::class,
        Console\DispatchDescribed::class,
        Console\Capture::class,
        Console\DownState::class,
        Console\Failed::class,
        Console\Flood::class,
        Console\Hostile::class,
        Console\Jobs::class,
        Console\Journal::class,
        Console\Kinds::class,
        Console\Lock::class,
        Console\Note::class,
        Console\Rush::class,
        Console\Scenario::class,
        Console\Same::class,
        Console\Serve::class,
        Console\Sizes::class,
        Console\Tables::class,
        Console\User::class,
    ];

    /**
     * Like the framework's own list, but configuration comes from code,
     * and providers are not read from caches, which would have to be
     * written first.
     */
    protected function bootstrappers()
    {
        return [
            Bootstrap\Configure::class,
            HandleExceptions::class,
            SetRequestForConsole::class,
            Bootstrap\RegisterProviders::class,
            BootProviders::class,
        ];
    }
}
