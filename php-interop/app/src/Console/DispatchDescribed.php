<?php

namespace App\Console;

class DispatchDescribed extends Dispatch
{
    protected $signature = 'interop:dispatch-described {kind=all} {--queue=} {--count=1}';

    protected $description = 'Like interop:dispatch, with what PHP says of the same objects';

    protected bool $describe = true;
}
