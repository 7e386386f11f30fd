<?php

namespace App\Wrapped;

use Illuminate\Contracts\Broadcasting\ShouldBeUnique;

if (interface_exists(ShouldBeUnique::class)) {
    /** A broadcast of which only one is queued at a time (Laravel 9.26 and later). */
    class UniqueScore extends Score implements ShouldBeUnique
    {
        public $uniqueFor = 600;

        public function uniqueId(): string
        {
            return 'score-'.$this->score;
        }
    }
} else {
    class UniqueScore extends Score {}
}
