<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\Interruptible;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;

// Since Laravel 13.
if (interface_exists(Interruptible::class)) {
    /** Runs until its worker reports a signal, and writes that to the journal of {@see Journal}. */
    class Interrupted implements Interruptible, ShouldQueue
    {
        use Dispatchable, InteractsWithQueue, Queueable;

        private $signal;

        public function __construct(public string $id) {}

        public function handle(): void
        {
            Journal::write($this->id, 'run');
            $end = hrtime(true) + 20_000_000_000;
            while ($this->signal === null && hrtime(true) < $end) {
                usleep(10_000);
            }
            Journal::write($this->id, 'end-'.$this->signal);
        }

        public function interrupted(int $signal): void
        {
            $this->signal = $signal;
        }
    }
}
