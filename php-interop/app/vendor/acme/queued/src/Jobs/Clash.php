<?php

namespace Acme\Queued\Jobs;

/** Ends PHP when it is loaded: its method does not match that of its parent. */
class Clash extends Convert
{
    public function handle(int $times): int
    {
        return $times;
    }
}
