<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Cache;

class Lock extends Command
{
    protected $signature = 'interop:lock {do} {name} {--owner=} {--seconds=0} {--store=}';

    protected $description = 'Do something with a cache lock (acquire, release, force-release, owner, refresh)';

    public function handle(): int
    {
        $seconds = (int) $this->option('seconds');
        $lock = Cache::store($this->option('store'))->lock($this->argument('name'), $seconds, $this->option('owner'));

        $result = match ($this->argument('do')) {
            'acquire' => ['result' => $lock->acquire(), 'owner' => $lock->owner()],
            'release' => ['result' => $lock->release()],
            'force-release' => ['result' => $lock->forceRelease()],
            // The current owner; this method is protected, but every kind of lock has it.
            'owner' => ['owner' => (fn () => $this->getCurrentOwner())->call($lock) ?: null],
            // Laravel 13 and later.
            'refresh' => ['result' => $lock->refresh($seconds ?: null)],
        };
        $this->output->writeln(Document::json($result), $this->output::OUTPUT_RAW);

        return 0;
    }
}
