<?php

namespace App\Jobs;

use Illuminate\Queue\Attributes\DebounceFor;

/** If several are dispatched within a second, only the last one runs (Laravel 13.6 and later). */
#[DebounceFor(1, maxWait: 100)]
class Debounced extends Guarded
{
    public function debounceId(): string
    {
        return $this->group;
    }
}
