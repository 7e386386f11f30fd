<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Constructor promotion: a default of the parameter is no default of the property. */
class Promoted implements ShouldQueue
{
    use Queued;

    public function __construct(
        public string $name = 'unnamed',
        public readonly int $level = 3,
        protected ?string $note = null,
        private array $options = [],
        public readonly bool $loud = false,
    ) {}
}
