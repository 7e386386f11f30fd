<?php

namespace Acme\Queued;

// Like a script of a package: nothing in it is queued, so nothing loads it.
exit(3);

class Tool extends \ArrayObject
{
    // It has nothing to do with ShouldQueue.
}
