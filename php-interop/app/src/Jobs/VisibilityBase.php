<?php

namespace App\Jobs;

abstract class VisibilityBase
{
    private $secret = 'parent default';

    private $parentOnly = 'parent default';

    protected $inherited = 'inherited default';

    protected function fillParent(): void
    {
        $this->secret = 'secret of the parent';
        $this->parentOnly = 'known to the parent alone';
        $this->inherited = 'inherited value';
    }
}
